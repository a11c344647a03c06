package com.asgow.ciel.references;

import com.asgow.ciel.executor.Ciel;
import com.asgow.ciel.rpc.ReferenceUnavailableException;

/** A reference to a serialized object. */
public class CielFuture<T> extends Reference {
    private static final long serialVersionUID = -4656221550083314411L; // the original's

    public CielFuture(Reference reference) {
        super(reference.ref());
    }

    /** Returns the object; raises ReferenceUnavailableException if it does not exist yet. */
    @SuppressWarnings("unchecked") // T is the caller's knowledge of the object
    public T get() {
        try {
            return (T) Ciel.readObject(this);
        } catch (ReferenceUnavailableException error) {
            throw error;
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }
}
