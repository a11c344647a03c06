package sdk;

import ciel.sdk.Child;
import ciel.sdk.Output;
import ciel.sdk.Ref;
import ciel.sdk.Task;
import ciel.sdk.TaskProgram;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Counts the words of an entry of the package: a child writes it line by line while further
 * children, one in a shell, read it; this task waits for their counts, and delegates the sum.
 */
public final class Words implements TaskProgram {
    @Override
    public void run(Task task) throws Exception {
        Ref text = task.lookUp(task.text(0)).orElseThrow();
        Ref lines = task.spawnOne(task.child(Writer.class, text).name("writer").retries(1));
        List<Ref> counts = new ArrayList<>();
        counts.add(task.spawnOne(task.child(Counter.class, lines).slots(1)));
        counts.add(task.spawnOne(Child.stdinout(List.of("wc", "-w"), text).name("shell")));
        task.blockOn(counts.toArray(new Ref[0]));
        task.log("first count: " + task.readText(counts.get(0)).strip());
        task.tailSpawn(task.child(Sum.class, counts).memoryBytes(256 << 20));
    }

    /** Copies an object line by line; other tasks read the copy meanwhile. */
    public static final class Writer implements TaskProgram {
        @Override
        public void run(Task task) throws Exception {
            try (Output out = task.openOutputStream(0);
                    BufferedReader lines =
                            new BufferedReader(new InputStreamReader(task.open(task.ref(0))))) {
                for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                    out.write((line + "\n").getBytes(StandardCharsets.UTF_8));
                    out.flush();
                }
            }
        }
    }

    /** Counts the words of an object while it grows. */
    public static final class Counter implements TaskProgram {
        @Override
        public void run(Task task) throws Exception {
            long words = 0;
            try (BufferedReader lines =
                    new BufferedReader(new InputStreamReader(task.openStream(task.ref(0))))) {
                for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                    words += line.split(" ").length;
                }
            }
            task.publish(0, words + "\n");
        }
    }

    /** Adds numbers. */
    public static final class Sum implements TaskProgram {
        @Override
        public void run(Task task) throws IOException {
            long sum = 0;
            for (Object part : (List<?>) task.args().get(0)) {
                sum += Long.parseLong(task.readText((Ref) part).strip());
            }
            task.publish(0, "sum " + sum + " " + System.getenv("CIEL_MEMORY_BYTES") + "\n");
        }
    }

    /** Does what its first argument says, wrongly. */
    public static final class Wrong implements TaskProgram {
        @Override
        public void run(Task task) throws Exception {
            switch (task.text(0)) {
                case "executor":
                    task.spawn(Child.of("fortran"));
                    break;
                case "keyword":
                    task.spawn(Child.stdinout(List.of("true")).with("slots", "many"));
                    break;
                case "child":
                    task.blockOn(task.spawnOne(task.child(Wrong.class, "division")));
                    break;
                case "division":
                    task.publish(0, "" + 1 / task.args().indexOf("division"));
                    break;
                default:
                    task.call("sing", Map.of());
            }
        }
    }
}
