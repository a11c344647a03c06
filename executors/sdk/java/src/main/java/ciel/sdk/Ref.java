package ciel.sdk;

import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * A reference to an object. References to the same object are equal.
 *
 * <p>Its JSON form is an array of a tag, the object's id, and the fields of the reference's kind.
 * Unknown kinds are passed through unchanged.
 */
public final class Ref implements Serializable {
    static final String KEY = "__ref__";
    private static final long serialVersionUID = 1;

    private transient List<?> array;

    Ref(List<?> array) {
        this.array = array;
    }

    /** Returns a reference to an object that is known by its id only. */
    public static Ref to(String id) {
        return new Ref(List.of("f2", Objects.requireNonNull(id)));
    }

    /** Returns a reference to an object that workers hold; `locations` are their HOST:PORT. */
    public static Ref stored(String id, long sizeBytes, List<String> locations) {
        return new Ref(List.of("c2", id, sizeBytes, List.copyOf(locations)));
    }

    /** Reads references in a text of JSON, such as the output of the executor "sync". */
    public static Object parse(String json) {
        return Json.parse(json);
    }

    public String id() {
        return (String) array.get(1);
    }

    /** Returns the kind: "f2" for an object that may not exist yet, "val" for a short one, ... */
    public String tag() {
        return (String) array.get(0);
    }

    /** Returns the JSON form. */
    public List<?> array() {
        return array;
    }

    /** Returns the reference in an object {"__ref__": [tag, id, ...]}; null if it is none. */
    static Ref of(Map<String, Object> object) {
        Object found = object.get(KEY);
        if (!(found instanceof List)) {
            return null;
        }
        List<?> array = (List<?>) found;
        boolean isRef =
                array.size() > 1
                        && array.get(0) instanceof String
                        && array.get(1) instanceof String;
        return isRef ? new Ref(array) : null;
    }

    private void writeObject(ObjectOutputStream out) throws IOException {
        out.writeObject(Json.write(array));
    }

    private void readObject(ObjectInputStream in) throws IOException, ClassNotFoundException {
        array = (List<?>) Json.parse((String) in.readObject());
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Ref && ((Ref) other).id().equals(id());
    }

    @Override
    public int hashCode() {
        return id().hashCode();
    }

    @Override
    public String toString() {
        return "Ref(" + tag() + " " + id() + ")";
    }
}
