package com.asgow.ciel.simple;

import java.io.InputStream;
import java.io.OutputStream;

/** The interface of classes that the original's executor "java" runs. */
public interface Task {
    void invoke(InputStream[] inputs, OutputStream[] outputs, String[] args);
}
