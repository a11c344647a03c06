package ciel.sdk;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A task to create: its executor, the keywords of that executor, and options of all tasks.
 *
 * <p>`with` adds any keyword, even if this class has no method for it.
 */
public final class Child {
    private final Map<String, Object> keywords = new LinkedHashMap<>();

    private Child(String executor) {
        keywords.put("executor_name", executor);
    }

    /** Returns a task of an executor, as yet without keywords. */
    public static Child of(String executor) {
        return new Child(executor);
    }

    /** Returns a task that runs a program, a conversation with it, and its arguments. */
    public static Child proc(List<?> command, Object... args) {
        return of("proc").with("command", command).with("proc_pargs", List.of(args));
    }

    /** Returns a task that runs a program, from its standard input to its standard output. */
    public static Child stdinout(List<?> commandLine, Ref... inputs) {
        Map<String, Object> args =
                Map.of("command_line", commandLine, "inputs", List.of(inputs));
        return of("stdinout").with("args", args).outputs(1);
    }

    public Child with(String keyword, Object value) {
        keywords.put(keyword, value);
        return this;
    }

    /** Sets the number of outputs. */
    public Child outputs(int count) {
        boolean isProc = keywords.get("executor_name").equals("proc");
        return with(isProc ? "force_n_outputs" : "n_outputs", count);
    }

    /** Adds objects for which the task waits; it also waits for references in its arguments. */
    public Child after(Ref... refs) {
        return with("extra_dependencies", List.of(refs));
    }

    /** Sets the name that people see. */
    public Child name(String name) {
        return with("name", name);
    }

    public Child slots(int slots) {
        return with("slots", slots);
    }

    public Child memoryBytes(long bytes) {
        return with("memory_bytes", bytes);
    }

    public Child timeoutSeconds(double seconds) {
        return with("timeout_s", seconds);
    }

    public Child priority(int priority) {
        return with("priority", priority);
    }

    /** Sets how often the task may run again after it failed. */
    public Child retries(int retries) {
        return with("retries", retries);
    }

    /** Adds a resource that the task has for itself, such as 1 of "gpu", or half of one. */
    public Child resource(String name, double amount) {
        @SuppressWarnings("unchecked")
        Map<String, Object> known = (Map<String, Object>) keywords.get("resources");
        Map<String, Object> resources = new LinkedHashMap<>(known == null ? Map.of() : known);
        resources.put(name, amount);
        return with("resources", resources);
    }

    /** Lets the task run only on workers with these labels, as in "zone=b and not disk=hdd". */
    public Child where(String labels) {
        return with("where", labels);
    }

    Map<String, Object> keywords() {
        return keywords;
    }
}
