package steps;

import ciel.sdk.Child;
import ciel.sdk.Output;
import ciel.sdk.Ref;
import ciel.sdk.StreamBrokenException;
import ciel.sdk.Task;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/** A program of the executor "proc" that does what the first argument says. */
public final class Steps {
    private static int served;

    public static void main(String[] argv) throws IOException {
        Task.serve(argv, Steps::run);
    }

    private static void run(Task task) throws Exception {
        served++;
        switch (task.text(0)) {
            case "arguments":
                task.keepsInCache("decoded", Ref.to("a"), Ref.to("b"));
                task.publish(0, served + " " + task.args() + " " + task.start().get("proc_kwargs"));
                break;
            case "spawn":
                spawn(task);
                break;
            case "wait":
                task.publish(0, task.readText(task.ref(1)));
                break;
            case "stream":
                task.publish(0, stream(task));
                break;
            case "outputs":
                outputs(task);
                break;
            case "interrupted":
                try (Output out = task.openOutput(0)) {
                    out.write(1);
                    throw new IOException("no space");
                }
            case "open":
                task.openOutput(0).write(1);
                task.blockOn(Ref.to("a"));
                break;
            case "fail":
                fail(task.text(1));
                break;
            case "say":
                task.log("half \ud800 a pair");
                System.out.print("printed");
                throw task.fail("x".repeat(200_000));
            default:
                task.number(1);
        }
    }

    private static void spawn(Task task) {
        Child sort = Child.stdinout(List.of("sort", "-n"), Ref.to("a")).name("sorting");
        Ref sorted =
                task.spawnOne(
                        sort.slots(2).memoryBytes(1 << 20).retries(3).priority(1).timeoutSeconds(9));
        task.spawn(Child.proc(List.of("count"), sorted, 2.5).outputs(2).after(Ref.to("b")));
        task.tailSpawn(Child.of("sync").with("args", Map.of("inputs", List.of(sorted))));
    }

    private static String stream(Task task) throws IOException {
        ByteArrayOutputStream read = new ByteArrayOutputStream();
        try (InputStream in =
                task.openStream(task.ref(1), 4, Map.of("sole_consumer", true))) {
            in.transferTo(read);
        } catch (StreamBrokenException error) {
            return error.getMessage();
        }
        return read.toString(StandardCharsets.UTF_8);
    }

    private static void outputs(Task task) throws IOException {
        int more = task.allocate("more");
        Output taken = task.openOutput(more);
        taken.write("no".getBytes(StandardCharsets.UTF_8));
        taken.rollBack();
        Output out = task.openOutputStream(more);
        out.write(new byte[100_000]);
        out.write('a');
        out.close();
        Ref large = task.publish(0, new byte[70_000]);
        task.log(out.ref() + " " + large + " " + task.lookUp("key").isPresent());
    }

    private static void fail(String how) {
        if (how.equals("Error")) {
            throw new StackOverflowError();
        }
        RuntimeException inner = new IllegalStateException("inner");
        RuntimeException outer = new IllegalArgumentException("outer", inner);
        inner.initCause(outer); // a ring
        throw outer;
    }
}
