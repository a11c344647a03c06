package com.asgow.ciel.tasks;

import ciel.sdk.Child;

/** A task to create. The original's method `toJson` is missing, since it needs Gson. */
public interface TaskInformation {
    Child toChild();
}
