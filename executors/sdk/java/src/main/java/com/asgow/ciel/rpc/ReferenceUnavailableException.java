package com.asgow.ciel.rpc;

import com.asgow.ciel.references.Reference;

/** An object does not exist yet; Ciel.blockOn waits for it. */
public class ReferenceUnavailableException extends RuntimeException {
    private static final long serialVersionUID = 1;

    public ReferenceUnavailableException(Reference reference) {
        super("the object " + reference.getId() + " does not exist yet");
    }
}
