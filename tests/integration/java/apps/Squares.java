package apps;

import com.asgow.ciel.executor.Ciel;
import com.asgow.ciel.references.CielFuture;
import com.asgow.ciel.references.Reference;
import com.asgow.ciel.rpc.ReferenceUnavailableException;
import com.asgow.ciel.tasks.ConstantNumOutputsTask;
import com.asgow.ciel.tasks.FirstClassJavaTask;
import com.asgow.ciel.tasks.SingleOutputTask;
import com.asgow.ciel.tasks.StdinoutTaskInformation;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashSet;
import java.util.Set;

/**
 * A program for the original: it is started by its name, spawns tasks that square N numbers, each
 * in a given number of milliseconds, is suspended until they are done, and delegates to a task that
 * adds them, whose last input is the output of a program.
 */
public class Squares implements FirstClassJavaTask {
    private static final long serialVersionUID = 1;

    public void setup() {}

    public Reference[] getDependencies() {
        return new Reference[0];
    }

    public void invoke() throws Exception {
        Reference[] made = new Reference[Integer.parseInt(Ciel.args[0])];
        for (int i = 0; i < made.length; i++) {
            made[i] = Ciel.spawn(new Square(i + 1, Long.parseLong(Ciel.args[1])))[0];
        }
        try {
            Ciel.stringOfRef(made[made.length - 1]);
        } catch (ReferenceUnavailableException error) {
            Ciel.blockOn(made);
        }
        if (!Ciel.stringOfRef(made[0]).startsWith("1 ")) { // it still has its futures
            throw new IllegalStateException("not what was waited for");
        }
        CielFuture<Integer> count = Ciel.spawnSingle(new Count(made.length));
        String[] command = {"tr", "a-z", "A-Z"};
        Reference[] inputs = {Ciel.RPC.packageLookup("words")};
        Reference loud = Ciel.RPC.spawnTask(new StdinoutTaskInformation(inputs, command))[0];
        Ciel.tailSpawn(new Sum(made, count, loud), new String[] {"a sum of "});
    }

    static class Square implements ConstantNumOutputsTask {
        private static final long serialVersionUID = 1;
        private final int number;
        private final long pauseMs;

        Square(int number, long pauseMs) {
            this.number = number;
            this.pauseMs = pauseMs;
        }

        public int getNumOutputs() {
            return 1;
        }

        public void setup() {}

        public Reference[] getDependencies() {
            return new Reference[] {null}; // as the original's programs do
        }

        public void invoke() throws Exception {
            Reference words = Ciel.RPC.packageLookup("words");
            if (Ciel.softCache.tryGetCache("words", words) == null) {
                Ciel.softCache.putCache(Ciel.stringOfRef(words), "words", words);
            }
            String text = (String) Ciel.softCache.tryGetCache("words", words); // one word
            Path host = Files.readSymbolicLink(Paths.get("/proc/self/ns/net"));
            Thread.sleep(pauseMs);
            // Every second result is longer than an inline value.
            String filler = " ".repeat(number % 2 == 0 ? 5000 : 0);
            String result = number * number + " " + text + " " + host + filler;
            try (OutputStream out = Ciel.RPC.getOutputFilename(0, true, false, false).open()) {
                out.write(result.getBytes(StandardCharsets.UTF_8));
            }
        }
    }

    static class Count extends SingleOutputTask<Integer> {
        private static final long serialVersionUID = 1;
        private final int count;

        Count(int count) {
            this.count = count;
        }

        public Integer run() {
            return count;
        }
    }

    static class Sum implements FirstClassJavaTask {
        private static final long serialVersionUID = 1;
        private final Reference[] parts;
        private final CielFuture<Integer> count;
        private final Reference loud;

        Sum(Reference[] parts, CielFuture<Integer> count, Reference loud) {
            this.parts = parts;
            this.count = count;
            this.loud = loud;
        }

        public void setup() {}

        public Reference[] getDependencies() {
            Reference[] all = new Reference[parts.length + 2];
            System.arraycopy(parts, 0, all, 2, parts.length);
            all[0] = count;
            all[1] = loud;
            return all;
        }

        public void invoke() throws Exception {
            int sum = 0;
            StringBuilder words = new StringBuilder();
            Set<String> hosts = new HashSet<>();
            for (Reference part : parts) {
                String[] found = read(part).split(" ");
                sum += Integer.parseInt(found[0]);
                words.append(' ').append(found[1]);
                hosts.add(found[2]);
            }
            Ciel.log(Ciel.args[0] + count.get());
            String end = ", on hosts: " + hosts.size() + ", " + Ciel.stringOfRef(loud);
            Ciel.returnPlainString(sum + words.toString() + end);
        }

        private static String read(Reference part) throws IOException {
            try (InputStream in = Ciel.RPC.getStreamForReference(part)) {
                return new String(in.readAllBytes(), StandardCharsets.UTF_8);
            }
        }
    }
}
