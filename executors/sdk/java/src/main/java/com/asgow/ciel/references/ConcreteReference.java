package com.asgow.ciel.references;

import ciel.sdk.Ref;
import java.util.ArrayList;
import java.util.List;

/** A reference to an object that exists, which a program itself makes. */
public class ConcreteReference extends Reference {
    private static final long serialVersionUID = 1;

    private final long sizeBytes;
    private final List<String> locations = new ArrayList<>();

    public ConcreteReference(String id, long size) {
        super(Ref.to(id));
        sizeBytes = size;
    }

    public void addLocation(Netloc location) {
        locations.add(location.toString());
    }

    public long getSizeHint() {
        return sizeBytes;
    }

    @Override
    public boolean isConsumable() {
        return true;
    }

    @Override
    public Ref ref() {
        return Ref.stored(getId(), sizeBytes, locations);
    }
}
