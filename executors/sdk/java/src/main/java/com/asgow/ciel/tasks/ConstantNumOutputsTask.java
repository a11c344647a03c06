package com.asgow.ciel.tasks;

/** A task that knows how many outputs it has. */
public interface ConstantNumOutputsTask extends FirstClassJavaTask {
    int getNumOutputs();
}
