package com.asgow.ciel.references;

import ciel.sdk.Ref;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

/** A reference. The original's methods that use Gson are missing. */
public class Reference implements Serializable {
    private static final long serialVersionUID = 1;

    private final Ref ref;

    public Reference(Ref ref) {
        this.ref = ref;
    }

    public String getId() {
        return ref.id();
    }

    /** Returns whether the object existed, or had failed, when this reference was received. */
    public boolean isConsumable() {
        return !ref.tag().equals("f2");
    }

    public Ref ref() {
        return ref;
    }

    /** Returns the references as the SDK has them, without nulls. */
    public static List<Ref> refs(Reference... references) {
        List<Ref> found = new ArrayList<>();
        for (Reference reference : references == null ? new Reference[0] : references) {
            if (reference != null) {
                found.add(reference.ref());
            }
        }
        return found;
    }

    /** Wraps references of the SDK. */
    public static Reference[] of(List<?> refs) {
        Reference[] found = new Reference[refs.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = new Reference((Ref) refs.get(i));
        }
        return found;
    }

    @Override
    public String toString() {
        return ref.toString();
    }
}
