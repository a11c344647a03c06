package ciel.sdk;

import java.io.BufferedInputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;

/**
 * One task: its arguments and operations.
 *
 * <p>Only one thread at a time may call its methods. An operation that the worker cannot carry out
 * raises TaskException; wrong arguments of a spawn end the program, and the worker says why.
 */
public final class Task {
    private static final int BUFFER_BYTES = 64 << 10;
    private static final int PUBLISH_MAX_BYTES = 64 << 10; // larger content is written to a file
    private static final int TEXT_MAX_CHARACTERS = 64 << 10; // of log messages and error reports

    private static final int CAUSES_MAX = 100;
    private static final Pattern LAUNCHING =
            Pattern.compile(
                    "com\\.asgow\\.ciel\\.executor\\.Java2Executor"
                            + "|java\\.lang\\.reflect\\.|jdk\\.internal\\.reflect\\.");

    private final Channel channel;
    private final Map<String, Object> start;
    private final List<Output> outputs = new ArrayList<>(); // open, or closed and not published
    private final List<Object> softCacheKeys = new ArrayList<>();
    private boolean isOver;

    private Task(Channel channel, Map<String, Object> start) {
        this.channel = channel;
        this.start = start;
    }

    /**
     * Runs a program for each task that the worker sends; returns when the worker has no further task.
     *
     * <p>`argv` are the arguments of `main`, whose last four name the FIFOs. An exception fails the
     * task, with its stack trace, and ends the JVM.
     */
    public static void serve(String[] argv, TaskProgram program) throws IOException {
        Channel channel = Channel.open(argv);
        while (true) {
            Map<String, Object> start = channel.nextTask();
            if (start == null) {
                return;
            }
            Task task = new Task(channel, start);
            try {
                program.run(task);
                if (!task.isOver) {
                    task.exit("may_keep");
                }
            } catch (Throwable error) {
                String trace = traceOf(error);
                if (!task.isOver && !(error instanceof WorkerGoneException)) {
                    throw task.fail(trace);
                }
                System.err.print(trace); // it cannot be reported to the worker
                System.exit(1); // also if the task left threads running
            }
        }
    }

    // --- arguments ---------------------------------------------------------------------------

    /**
     * Returns `args` (of "java2") or `proc_pargs` (of "proc"): null, Boolean, Long, BigInteger (if
     * it does not fit), Double, String, List, Map and Ref.
     */
    public List<?> args() {
        Object args = start.containsKey("args") ? start.get("args") : start.get("proc_pargs");
        return args instanceof List ? (List<?>) args : List.of();
    }

    /** Returns an argument that must be a reference. */
    public Ref ref(int number) {
        return argument(number, Ref.class, "a reference");
    }

    /** Returns an argument that must be a string. */
    public String text(int number) {
        return argument(number, String.class, "a string");
    }

    /** Returns an argument that must be a whole number, or a string of one. */
    public long number(int number) {
        Object found = number < args().size() ? args().get(number) : null;
        if (found instanceof String && ((String) found).matches("-?[0-9]{1,18}")) {
            return Long.parseLong((String) found);
        }
        return argument(number, Long.class, "a whole number");
    }

    private <T> T argument(int number, Class<T> type, String what) {
        Object found = number < args().size() ? args().get(number) : "missing";
        if (number >= args().size() || !type.isInstance(found)) {
            throw new IllegalArgumentException(
                    "argument " + number + " must be " + what + ", but is " + found);
        }
        return type.cast(found);
    }

    /** Returns all arguments of `start_task`. */
    public Map<String, Object> start() {
        return start;
    }

    // --- inputs ------------------------------------------------------------------------------

    /** Returns the path of an object, for reading; waits for it like `blockOn`. */
    public Path path(Ref ref) {
        return Paths.get((String) opened("open_ref", ref, Map.of("ref", ref)).get("filename"));
    }

    /** Opens an object for reading; waits for it like `blockOn`. */
    public InputStream open(Ref ref) throws IOException {
        return new BufferedInputStream(new FileInputStream(path(ref).toFile()), BUFFER_BYTES);
    }

    /** Returns the content of an object; waits for it like `blockOn`. */
    public byte[] read(Ref ref) throws IOException {
        if (ref.tag().equals("val")) {
            return Base64.getDecoder().decode((String) ref.array().get(2));
        }
        return Files.readAllBytes(path(ref));
    }

    /** Returns the content of an object as text in UTF-8; waits for it like `blockOn`. */
    public String readText(Ref ref) throws IOException {
        return new String(read(ref), StandardCharsets.UTF_8);
    }

    /** Opens an object that may still be growing, and reads as soon as there are more bytes. */
    public InputStream openStream(Ref ref) throws IOException {
        return openStream(ref, 1, Map.of());
    }

    /**
     * Opens an object that may still be growing; waits until its producer has started it.
     *
     * <p>Reading waits until `chunkBytes` more bytes are available, or the object is complete. It
     * raises StreamBrokenException if the producer fails; then the data read so far is incomplete.
     * Options are `sole_consumer` and `must_block`.
     */
    public InputStream openStream(Ref ref, long chunkBytes, Map<String, ?> options)
            throws IOException {
        Map<String, Object> args = new LinkedHashMap<>(options);
        args.put("ref", ref);
        args.put("chunk_size", chunkBytes);
        Map<String, Object> opened = opened("open_ref_async", ref, args);
        return new BufferedInputStream(
                new GrowingInput(this, ref.id(), chunkBytes, opened), BUFFER_BYTES);
    }

    private Map<String, Object> opened(String method, Ref ref, Map<String, ?> args) {
        while (true) {
            Map<String, Object> reply = Channel.object(call(method, args));
            Object error = reply.get("error");
            if (error == null) {
                return reply;
            }
            if (!error.equals("EWOULDBLOCK")) {
                throw new TaskException(ref.id() + " cannot be opened: " + error);
            }
            blockOn(ref);
        }
    }

    /**
     * Suspends this process until objects are available, or started as streams.
     *
     * <p>Meanwhile the task takes no slot of the worker. Afterwards a new task continues in this
     * process. It cannot use outputs that were allocated before, but must still produce the outputs
     * for which the task was started.
     */
    public void blockOn(Ref... refs) {
        requireRunning();
        publishClosed();
        if (!outputs.isEmpty()) {
            throw new TaskException(
                    "close output " + outputs.get(0).index() + " before you wait for an object");
        }
        if (refs.length == 0) {
            return;
        }
        tell(
                "tail_spawn",
                Map.of(
                        "executor_name", "proc",
                        "extra_dependencies", refs,
                        "is_fixed", true));
        tell("exit", Map.of("keep_process", "must_keep"));
        if (channel.nextTask() == null) {
            throw new WorkerGoneException("the worker ended while this task waited for objects");
        }
    }

    /** Returns the entry of a key in the package of the job, if there is one. */
    public Optional<Ref> lookUp(String key) {
        Object reply = call("package_lookup", Map.of("key", key));
        return Optional.ofNullable((Ref) Channel.object(reply).get("value"));
    }

    // --- outputs -----------------------------------------------------------------------------

    /** Publishes the whole content of an output. */
    public Ref publish(int index, byte[] content) throws IOException {
        if (content.length > PUBLISH_MAX_BYTES) {
            Output output = openOutput(index);
            output.write(content);
            output.close();
            return output.ref();
        }
        String encoded = Base64.getEncoder().encodeToString(content);
        Object reply = call("publish_string", Map.of("index", index, "str", encoded));
        return (Ref) Channel.object(reply).get("ref");
    }

    /** Publishes a text, in UTF-8, as the whole content of an output. */
    public Ref publish(int index, String content) throws IOException {
        return publish(index, content.getBytes(StandardCharsets.UTF_8));
    }

    /** Opens an output for writing. */
    public Output openOutput(int index) throws IOException {
        return openOutput(index, Map.of());
    }

    /** Opens an output that other tasks may read from now on, as far as it is flushed. */
    public Output openOutputStream(int index) throws IOException {
        return openOutput(index, Map.of("may_stream", true));
    }

    /** Opens an output; options are `may_stream`, `may_pipe` and `make_local_sweetheart`. */
    public Output openOutput(int index, Map<String, ?> options) throws IOException {
        Map<String, Object> args = new LinkedHashMap<>(options);
        args.put("index", index);
        Object reply = call("open_output", args);
        Output output = new Output(this, index, (String) Channel.object(reply).get("filename"));
        outputs.add(output);
        return output;
    }

    /** Adds an output, which other tasks can get only by its reference; returns its index. */
    public int allocate(String prefix) {
        Object reply = call("allocate_output", Map.of("prefix", prefix));
        return ((Long) Channel.object(reply).get("index")).intValue();
    }

    /** Publishes the outputs that were closed since the last call. */
    void publishClosed() {
        for (Output output : new ArrayList<>(outputs)) {
            if (output.isClosed()) {
                outputs.remove(output);
                output.publish(channel);
            }
        }
    }

    /** Returns whether the output was still to be published; now it will not be. */
    boolean forget(Output output) {
        return outputs.remove(output);
    }

    // --- children ----------------------------------------------------------------------------

    /** Creates a task; returns references to its outputs. */
    public List<Ref> spawn(Child child) {
        Object reply = call("spawn", child.keywords());
        List<?> found = reply instanceof List ? (List<?>) reply : Arrays.asList(reply);
        List<Ref> refs = new ArrayList<>();
        for (Object ref : found) {
            refs.add((Ref) ref);
        }
        return refs;
    }

    /** Creates a task with one output; returns the reference to it. */
    public Ref spawnOne(Child child) {
        List<Ref> refs = spawn(child);
        if (refs.size() != 1) {
            throw new TaskException("the task has " + refs.size() + " outputs instead of one");
        }
        return refs.get(0);
    }

    /** Creates a task that takes over the outputs of this one. */
    public void tailSpawn(Child child) {
        tell("tail_spawn", child.keywords());
    }

    /** Returns a child of the executor "java2": a class in the jars of this task. */
    public Child child(Class<? extends TaskProgram> program, Object... args) {
        return Child.of("java2")
                .with("jar_lib", start.getOrDefault("jar_lib", List.of()))
                .with("class_name", program.getName())
                .with("args", Arrays.asList(args));
    }

    // --- messages, and the end ---------------------------------------------------------------

    /** Adds a line to the log of the job. */
    public void log(String text) {
        tell("log", Map.of("message", printable(text)));
        channel.flush();
    }

    /** Calls any method of the protocol, and waits for the reply. */
    public Object call(String method, Map<String, ?> args) {
        requireRunning();
        publishClosed();
        return channel.ask(method, args);
    }

    /** Calls a method without a reply; it is sent at the latest when the task waits. */
    public void tell(String method, Map<String, ?> args) {
        requireRunning();
        publishClosed();
        channel.send(method, args);
    }

    /** Says that this program has made something of these objects, and keeps it for later tasks. */
    public void keepsInCache(String tag, Ref... madeOf) {
        List<String> ids = new ArrayList<>();
        for (Ref ref : madeOf) {
            ids.add(ref.id());
        }
        softCacheKeys.add(List.of(ids, tag));
    }

    /** Fails the task, and ends the JVM; returns nothing, so that `throw` may precede the call. */
    public RuntimeException fail(String text) {
        requireRunning();
        channel.send("error", Map.of("report", printable(text)));
        end();
        System.exit(1);
        return new IllegalStateException(); // never reached, but the compiler requires it
    }

    /** Ends the task successfully; `keep`: "may_keep" if this program can run further tasks. */
    public void exit(String keep) throws IOException {
        for (Output output : new ArrayList<>(outputs)) {
            output.close();
        }
        tell("exit", Map.of("keep_process", keep, "soft_cache_keys", softCacheKeys));
        end();
    }

    private void end() {
        System.out.flush(); // so that the output is not attributed to the next task
        System.err.flush();
        isOver = true;
        channel.flush();
    }

    boolean isOver() {
        return isOver;
    }

    private void requireRunning() {
        if (isOver) {
            throw new TaskException("this task has ended");
        }
    }

    /** Returns a stack trace without the frames that start a program. */
    private static String traceOf(Throwable error) {
        int causes = 0;
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (++causes > CAUSES_MAX) {
                break; // they may form a ring
            }
            StackTraceElement[] trace = each.getStackTrace();
            int end = trace.length;
            for (int i = 0; i < end; i++) {
                String frame = trace[i].getClassName() + "." + trace[i].getMethodName();
                if (frame.equals(Task.class.getName() + ".serve")) {
                    end = i;
                }
            }
            while (end > 0 && LAUNCHING.matcher(trace[end - 1].getClassName()).lookingAt()) {
                end--;
            }
            each.setStackTrace(Arrays.copyOf(trace, end));
        }
        StringWriter text = new StringWriter();
        error.printStackTrace(new PrintWriter(text, true));
        return text.toString();
    }

    /** Omits the middle of a long text, and escapes what UTF-8 cannot encode. */
    private static String printable(String text) {
        if (text.length() > TEXT_MAX_CHARACTERS) {
            int half = TEXT_MAX_CHARACTERS / 2;
            String end = text.substring(text.length() - half);
            text = text.substring(0, half) + "\n[...]\n" + end;
        }
        StringBuilder escaped = new StringBuilder();
        text.codePoints()
                .forEach(
                        point -> {
                            if (Character.MIN_SURROGATE <= point
                                    && point <= Character.MAX_SURROGATE) {
                                escaped.append(String.format("\\u%04x", point));
                            } else {
                                escaped.appendCodePoint(point);
                            }
                        });
        return escaped.toString();
    }
}
