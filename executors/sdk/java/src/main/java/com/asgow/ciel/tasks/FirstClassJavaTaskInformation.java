package com.asgow.ciel.tasks;

import ciel.sdk.Child;
import ciel.sdk.Ref;
import com.asgow.ciel.references.Reference;
import java.util.ArrayList;
import java.util.List;

/** A class, or a serialized task, to run as a task of "java2". */
public class FirstClassJavaTaskInformation implements TaskInformation {
    private final Child child = Child.of("java2");
    private final List<Ref> dependencies = new ArrayList<>();

    public FirstClassJavaTaskInformation(
            Class<? extends FirstClassJavaTask> type,
            Reference[] jarLib,
            String[] args,
            int numOutputs) {
        this(jarLib, args);
        child.with("class_name", type.getName()).outputs(numOutputs);
    }

    public FirstClassJavaTaskInformation(
            Reference object, Reference[] jarLib, String[] args, int numOutputs) {
        this(object, jarLib, args);
        child.outputs(numOutputs);
    }

    /** Describes a task that takes over the outputs of its creator. */
    public FirstClassJavaTaskInformation(Reference object, Reference[] jarLib, String[] args) {
        this(jarLib, args);
        child.with("object_ref", object.ref());
    }

    private FirstClassJavaTaskInformation(Reference[] jarLib, String[] args) {
        child.with("jar_lib", Reference.refs(jarLib));
        if (args != null) {
            child.with("args", args);
        }
    }

    public void addDependency(Reference reference) {
        dependencies.addAll(Reference.refs(reference));
    }

    @Override
    public Child toChild() {
        return child.after(dependencies.toArray(new Ref[0]));
    }
}
