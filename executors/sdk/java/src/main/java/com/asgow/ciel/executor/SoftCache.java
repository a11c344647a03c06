package com.asgow.ciel.executor;

import ciel.sdk.Task;
import com.asgow.ciel.references.Reference;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Values that this JVM has made of objects, and keeps for later tasks while memory suffices. */
public class SoftCache {
    private static final int ENTRIES_MAX = 64; // an entry may be as large as its objects

    private static final class Entry {
        final Object value;
        final String tag;
        final Reference[] madeOf;

        Entry(Object value, String tag, Reference[] madeOf) {
            this.value = value;
            this.tag = tag;
            this.madeOf = madeOf;
        }
    }

    /** The entries, least recently used first. */
    private final Map<List<String>, Entry> entries = new LinkedHashMap<>(16, 0.75f, true);

    /** Returns a value; null if there is none. The order of references does not matter. */
    public Object tryGetCache(String tag, Reference... madeOf) {
        Entry entry = entries.get(key(tag, madeOf));
        return entry == null ? null : entry.value;
    }

    public void putCache(Object value, String tag, Reference... madeOf) {
        entries.put(key(tag, madeOf), new Entry(value, tag, madeOf));
        if (entries.size() > ENTRIES_MAX) {
            entries.remove(entries.keySet().iterator().next());
        }
    }

    void report(Task task) {
        for (Entry entry : entries.values()) {
            task.keepsInCache(
                    entry.tag, Reference.refs(entry.madeOf).toArray(new ciel.sdk.Ref[0]));
        }
    }

    private static List<String> key(String tag, Reference[] madeOf) {
        List<String> key =
                Arrays.stream(madeOf)
                        .map(Reference::getId)
                        .sorted(Comparator.naturalOrder())
                        .collect(Collectors.toList());
        key.add(tag);
        return key;
    }
}
