package com.example;

import ciel.sdk.Task;
import ciel.sdk.TaskProgram;

/** Pi by so many terms of the series of Leibniz. */
public class Pi implements TaskProgram {
    public void run(Task task) throws Exception {
        double sum = 0;
        for (long i = task.number(0) - 1; i >= 0; i--) {
            sum += (i % 2 == 0 ? 4.0 : -4.0) / (2 * i + 1);
        }
        task.publish(0, sum + "\n");
    }
}
