package com.asgow.ciel.tasks;

import com.asgow.ciel.executor.Ciel;
import com.asgow.ciel.references.Reference;

/** A task whose output is a serialized object, which CielFuture.get reads. */
public abstract class SingleOutputTask<T> implements FirstClassJavaTask {
    private static final long serialVersionUID = 2685291728220990030L; // the original's

    public abstract T run();

    @Override
    public void setup() {}

    @Override
    public void invoke() throws Exception {
        Ciel.returnObject(run());
    }

    @Override
    public Reference[] getDependencies() {
        return new Reference[0];
    }
}
