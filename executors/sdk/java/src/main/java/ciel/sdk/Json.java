package ciel.sdk;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads and writes JSON: null, Boolean, Long, BigInteger, Double, String, List, Map and Ref.
 *
 * <p>Whole numbers are Long if they fit. Written are also arrays, and other integers and floats.
 */
final class Json {
    private static final int DEPTH_MAX = 500; // a frame of brackets only must not end the stack

    private final String text;
    private int at;
    private int depth;

    private Json(String text) {
        this.text = text;
    }

    /** Returns the value of a text; raises TaskException if it is not JSON. */
    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value();
        if (json.skip() != 0) {
            throw json.wrong("nothing more");
        }
        return value;
    }

    static String write(Object value) {
        StringBuilder text = new StringBuilder();
        write(value, text);
        return text.toString();
    }

    private static void write(Object value, StringBuilder text) {
        if (value == null || value instanceof Boolean || isWhole(value)) {
            text.append(value);
        } else if (value instanceof CharSequence) {
            quote((CharSequence) value, text);
        } else if (value instanceof Ref) {
            write(Map.of(Ref.KEY, ((Ref) value).array()), text);
        } else if (value instanceof Map) {
            String before = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                text.append(before);
                quote((String) entry.getKey(), text);
                write(entry.getValue(), text.append(':'));
                before = ",";
            }
            text.append(before.equals("{") ? "{}" : "}");
        } else if (value instanceof Collection) {
            String before = "[";
            for (Object item : (Collection<?>) value) {
                write(item, text.append(before));
                before = ",";
            }
            text.append(before.equals("[") ? "[]" : "]");
        } else if (value instanceof Object[]) {
            write(Arrays.asList((Object[]) value), text);
        } else if (isFinite(value)) {
            text.append(value);
        } else {
            String named = value.getClass().getName() + " cannot be sent to a worker: " + value;
            throw new IllegalArgumentException(named);
        }
    }

    private static boolean isWhole(Object value) {
        return value instanceof Long
                || value instanceof Integer
                || value instanceof Short
                || value instanceof Byte
                || value instanceof BigInteger;
    }

    private static boolean isFinite(Object value) {
        return (value instanceof Double || value instanceof Float)
                && Double.isFinite(((Number) value).doubleValue());
    }

    private static void quote(CharSequence value, StringBuilder text) {
        text.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < ' ' || Character.isSurrogate(c)) { // UTF-8 cannot encode half a pair
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        text.append('"');
    }

    private TaskException wrong(String expected) {
        int from = Math.max(0, Math.min(at, text.length()) - 20);
        String near = text.substring(from, Math.min(text.length(), from + 40));
        return new TaskException("no JSON: " + expected + " expected at " + at + ", near " + near);
    }

    /** Skips blanks; returns the next character, or 0 at the end. */
    private char skip() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : 0;
    }

    private void expect(char wanted) {
        if (skip() != wanted) {
            throw wrong("'" + wanted + "'");
        }
        at++;
    }

    private Object value() {
        switch (skip()) {
            case '{':
                return object();
            case '[':
                return list();
            case '"':
                return string();
            default:
                return word();
        }
    }

    private void enter() {
        at++;
        if (++depth > DEPTH_MAX) {
            throw wrong("at most " + DEPTH_MAX + " levels");
        }
    }

    private Object object() {
        Map<String, Object> found = new LinkedHashMap<>();
        enter();
        if (skip() == '}') {
            at++;
        } else {
            do {
                if (skip() != '"') {
                    throw wrong("a key");
                }
                String key = string();
                expect(':');
                found.put(key, value());
            } while (more('}'));
        }
        depth--;
        Ref ref = Ref.of(found);
        return ref == null ? found : ref;
    }

    private List<Object> list() {
        List<Object> found = new ArrayList<>();
        enter();
        if (skip() == ']') {
            at++;
        } else {
            do {
                found.add(value());
            } while (more(']'));
        }
        depth--;
        return found;
    }

    /** Skips a comma, or the end; returns whether it was a comma. */
    private boolean more(char end) {
        char next = skip();
        if (next != ',' && next != end) {
            throw wrong("',' or '" + end + "'");
        }
        at++;
        return next == ',';
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        at++;
        while (true) {
            char c = at < text.length() ? text.charAt(at) : 0;
            if (c < ' ') {
                throw wrong("a character or '\"'");
            }
            at++;
            if (c == '"') {
                return found.toString();
            }
            found.append(c == '\\' ? escaped() : c);
        }
    }

    private char escaped() {
        char c = at < text.length() ? text.charAt(at) : 0;
        int place = "\"\\/bfnrt".indexOf(c);
        if (place >= 0) {
            at++;
            return "\"\\/\b\f\n\r\t".charAt(place);
        }
        int end = text.length();
        String digits = text.substring(Math.min(at + 1, end), Math.min(at + 5, end));
        if (c != 'u' || !digits.matches("[0-9a-fA-F]{4}")) {
            throw wrong("an escape");
        }
        at += 5;
        return (char) Integer.parseInt(digits, 16);
    }

    private Object word() {
        int start = at;
        while (at < text.length() && isPartOfWord(text.charAt(at))) {
            at++;
        }
        String word = text.substring(start, at);
        switch (word) {
            case "null":
                return null;
            case "true":
            case "false":
                return word.equals("true");
            default:
                return number(word);
        }
    }

    private static boolean isPartOfWord(char c) {
        return c < 128 && (Character.isLetterOrDigit(c) || "+-.".indexOf(c) >= 0);
    }

    private Number number(String word) {
        if (word.matches("-?(0|[1-9][0-9]*)")) {
            BigInteger whole = new BigInteger(word);
            return whole.bitLength() < Long.SIZE ? (Number) whole.longValue() : whole;
        }
        if (!word.matches("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")) {
            throw wrong("a value");
        }
        double number = Double.parseDouble(word);
        if (Double.isInfinite(number)) {
            throw wrong("a number that a double can hold");
        }
        return number;
    }
}
