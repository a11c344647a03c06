package com.asgow.ciel.executor;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The methods that tasks call. */
public final class Ciel {
    public static Rpc RPC;
    public static String[] args;
    public static List<Ref> jarLib;

    private static final Map<String, Object> KEPT = new HashMap<>();
    private static final List<Object> KEPT_KEYS = new ArrayList<>();

    public static Ref[] spawn(FirstClassJavaTask task, int outputs) throws IOException {
        Map<String, Object> asked = described(task);
        asked.put("n_outputs", outputs);
        RPC.tell("spawn", asked);
        return Rpc.refs(RPC.next().get(1)).toArray(new Ref[0]);
    }

    public static void tailSpawn(FirstClassJavaTask task) throws IOException {
        RPC.tell("tail_spawn", described(task));
    }

    private static Map<String, Object> described(FirstClassJavaTask task) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(task);
        }
        Map<String, Object> reply = RPC.ask("allocate_output", Map.of("prefix", "obj"));
        int index = ((Double) reply.get("index")).intValue();
        Map<String, Object> asked = new LinkedHashMap<>();
        asked.put("executor_name", "java2");
        asked.put("object_ref", returnBytes(index, bytes.toByteArray()));
        asked.put("jar_lib", jarLib);
        asked.put("extra_dependencies", List.of(task.getDependencies()));
        return asked;
    }

    public static Ref returnBytes(int index, byte[] content) throws IOException {
        Map<String, Object> reply = RPC.ask("open_output", Map.of("index", index));
        Files.write(Paths.get((String) reply.get("filename")), content);
        return (Ref) RPC.ask("close_output", Map.of("index", index, "size", content.length)).get("ref");
    }

    public static Ref returnPlainString(String text) throws IOException {
        return returnBytes(0, text.getBytes(StandardCharsets.UTF_8));
    }

    /** Blocks until all of these objects exist. */
    public static void blockOn(Ref... refs) throws IOException {
        RPC.tell(
                "tail_spawn",
                Map.of(
                        "executor_name", "java2",
                        "is_fixed", true,
                        "extra_dependencies", List.of(refs)));
        exit("must_keep");
        if (RPC.next() == null) {
            System.exit(0);
        }
    }

    static void exit(String keep) throws IOException {
        RPC.tell("exit", Map.of("keep_process", keep, "soft_cache_keys", KEPT_KEYS));
    }

    static String open(Ref ref, boolean makeSweetheart) throws IOException {
        Map<String, Object> reply =
                RPC.ask("open_ref", Map.of("ref", ref, "make_sweetheart", makeSweetheart));
        if (!reply.containsKey("filename")) {
            throw new IllegalStateException("ReferenceUnavailableException: " + ref.id);
        }
        return (String) reply.get("filename");
    }

    public static byte[] read(Ref ref) throws IOException {
        return Files.readAllBytes(Paths.get(open(ref, false)));
    }

    public static String stringOfRef(Ref ref) throws IOException {
        return new String(read(ref), StandardCharsets.UTF_8);
    }

    public static Ref getRefFromPackage(String key) throws IOException {
        return (Ref) RPC.ask("package_lookup", Map.of("key", key)).get("value");
    }

    public static void log(String message) throws IOException {
        RPC.tell("log", Map.of("message", message));
    }

    /** Returns the value that this JVM caches under a tag, or null. */
    public static Object cached(String tag) {
        return KEPT.get(tag);
    }

    public static void cache(String tag, Object value, Ref... madeOf) {
        KEPT.put(tag, value);
        List<Object> ids = new ArrayList<>();
        for (Ref ref : madeOf) {
            ids.add(ref.id);
        }
        KEPT_KEYS.add(List.of(ids, tag));
    }
}
