package com.asgow.ciel.executor;

import java.io.Serializable;
import java.util.List;

/** A reference, read like in the original's Java side: it throws in the same cases. */
public final class Ref implements Serializable {
    public final String tag;
    public final String id;
    private final String base64; // of what rides in it

    Ref(List<?> array) {
        tag = (String) array.get(0);
        id = (String) array.get(1);
        base64 = tag.equals("val") ? (String) array.get(2) : null;
        switch (tag) {
            case "f2":
            case "val":
            case "completed2":
                break;
            case "c2":
                ((Number) array.get(2)).longValue();
                places((List<?>) array.get(3));
                break;
            case "<3":
                place((String) array.get(2));
                ((Number) array.get(3)).longValue();
                places((List<?>) array.get(4));
                break;
            case "s2":
                place((String) ((List<?>) array.get(2)).get(0));
                break;
            default:
                throw new IllegalArgumentException("a reference of kind " + tag);
        }
    }

    private static void places(List<?> netlocs) {
        for (Object netloc : netlocs) {
            place((String) netloc);
        }
    }

    private static void place(String netloc) {
        String[] parts = netloc.split(":");
        if (parts.length != 2) {
            throw new IllegalArgumentException("a place called " + netloc);
        }
        Short.parseShort(parts[1]);
    }

    List<Object> array() { // without locations
        return base64 == null ? List.of("f2", id) : List.of("val", id, base64);
    }
}
