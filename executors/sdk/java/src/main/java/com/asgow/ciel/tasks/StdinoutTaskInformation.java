package com.asgow.ciel.tasks;

import ciel.sdk.Child;
import ciel.sdk.Ref;
import com.asgow.ciel.references.Reference;
import java.util.List;

/** A program to run from its standard input to its standard output. */
public class StdinoutTaskInformation implements TaskInformation {
    private final Child child;

    public StdinoutTaskInformation(Reference[] inputs, String[] commandLine) {
        child = Child.stdinout(List.of(commandLine), Reference.refs(inputs).toArray(new Ref[0]));
    }

    @Override
    public Child toChild() {
        return child;
    }
}
