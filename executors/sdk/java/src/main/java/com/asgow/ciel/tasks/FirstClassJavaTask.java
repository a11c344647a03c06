package com.asgow.ciel.tasks;

import com.asgow.ciel.references.Reference;
import java.io.Serializable;

/** A task of the original's executor "java2". */
public interface FirstClassJavaTask extends Serializable {
    void setup();

    void invoke() throws Exception;

    /** Returns the objects for which the task waits; elements may be null. */
    Reference[] getDependencies();
}
