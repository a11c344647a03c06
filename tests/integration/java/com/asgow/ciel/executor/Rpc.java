package com.asgow.ciel.executor;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Frames of JSON on two FIFOs; like Gson, it escapes characters that are special in HTML. */
public final class Rpc {
    private final DataOutputStream out;
    private final DataInputStream in;

    Rpc(String write, String read) throws IOException {
        out = new DataOutputStream(new FileOutputStream(write));
        in = new DataInputStream(new FileInputStream(read));
    }

    /** Returns the next frame, or null at the end. */
    List<Object> next() throws IOException {
        byte[] frame;
        try {
            frame = new byte[in.readInt()];
        } catch (EOFException end) {
            return null;
        }
        in.readFully(frame);
        return list(new Reader(new String(frame, StandardCharsets.UTF_8)).value());
    }

    void tell(String method, Map<String, Object> args) throws IOException {
        StringBuilder text = new StringBuilder();
        write(List.of(method, args), text);
        byte[] frame = text.toString().getBytes(StandardCharsets.UTF_8);
        out.writeInt(frame.length);
        out.write(frame);
        out.flush();
    }

    /** Regards the next frame as the answer, whichever it is. */
    Map<String, Object> ask(String method, Map<String, Object> args) throws IOException {
        tell(method, args);
        return object(next().get(1));
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(Object value) {
        return (Map<String, Object>) value;
    }

    @SuppressWarnings("unchecked")
    static List<Object> list(Object value) {
        return (List<Object>) value;
    }

    static List<Ref> refs(Object value) {
        List<Ref> found = new ArrayList<>();
        for (Object item : value == null ? List.of() : list(value)) {
            found.add((Ref) item);
        }
        return found;
    }

    static String[] texts(Object value) {
        List<Object> items = value == null ? List.of() : list(value);
        return items.stream().map(Object::toString).toArray(String[]::new);
    }

    private static void write(Object value, StringBuilder text) {
        if (value instanceof Ref) {
            write(Map.of("__ref__", ((Ref) value).array()), text);
        } else if (value instanceof Map) {
            String before = "{";
            for (Map.Entry<String, Object> entry : object(value).entrySet()) {
                text.append(before);
                write(entry.getKey(), text);
                text.append(':');
                write(entry.getValue(), text);
                before = ",";
            }
            text.append(before.equals("{") ? "{}" : "}");
        } else if (value instanceof List) {
            String before = "[";
            for (Object item : list(value)) {
                text.append(before);
                write(item, text);
                before = ",";
            }
            text.append(before.equals("[") ? "[]" : "]");
        } else if (value instanceof String) {
            text.append('"');
            for (char c : ((String) value).toCharArray()) {
                boolean isPlain = c >= ' ' && c < 127 && "\"\\<>&='".indexOf(c) < 0;
                text.append(isPlain ? String.valueOf(c) : String.format("\\u%04x", (int) c));
            }
            text.append('"');
        } else {
            text.append(value);
        }
    }

    private static final class Reader {
        private final String text;
        private int at;

        Reader(String text) {
            this.text = text;
        }

        Object value() {
            char c = skip();
            if (c == '{') {
                Map<String, Object> found = new LinkedHashMap<>();
                while (item('}')) {
                    String key = (String) value();
                    skip();
                    at++; // the colon
                    found.put(key, value());
                }
                Object array = found.get("__ref__");
                return array == null ? found : new Ref(list(array));
            }
            if (c == '[') {
                List<Object> found = new ArrayList<>();
                while (item(']')) {
                    found.add(value());
                }
                return found;
            }
            return c == '"' ? string() : word();
        }

        private char skip() {
            while (Character.isWhitespace(text.charAt(at))) {
                at++;
            }
            return text.charAt(at);
        }

        /** Skips an opening bracket or a separator; returns whether an item follows before the end. */
        private boolean item(char end) {
            if (skip() != end) {
                at++;
                if (skip() != end) {
                    return true;
                }
            }
            at++;
            return false;
        }

        private String string() {
            StringBuilder found = new StringBuilder();
            for (at++; text.charAt(at) != '"'; at++) {
                char c = text.charAt(at);
                if (c == '\\') {
                    c = text.charAt(++at);
                    int plain = "bfnrt".indexOf(c);
                    if (c == 'u') {
                        c = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
                        at += 4;
                    } else if (plain >= 0) {
                        c = "\b\f\n\r\t".charAt(plain);
                    }
                }
                found.append(c);
            }
            at++;
            return found.toString();
        }

        private Object word() {
            int start = at;
            while (at < text.length() && ",]} ".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String found = text.substring(start, at);
            switch (found) {
                case "true":
                case "false":
                    return found.equals("true");
                case "null":
                    return null;
                default:
                    return Double.valueOf(found);
            }
        }
    }
}
