package apps;

import com.asgow.ciel.executor.Ciel;
import com.asgow.ciel.executor.FirstClassJavaTask;
import com.asgow.ciel.executor.Ref;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.HashSet;
import java.util.Set;

/**
 * Is started by its name; spawns tasks that square N numbers, each in a given number of
 * milliseconds, is suspended until they are done, and delegates to a task that adds them.
 */
public class Squares implements FirstClassJavaTask {
    public void setup() {}

    public Ref[] getDependencies() {
        return new Ref[0];
    }

    public void invoke() throws Exception {
        Ref[] made = new Ref[Integer.parseInt(Ciel.args[0])];
        for (int i = 0; i < made.length; i++) {
            made[i] = Ciel.spawn(new Square(i + 1, Long.parseLong(Ciel.args[1])), 1)[0];
        }
        Ciel.blockOn(made);
        if (!Ciel.stringOfRef(made[0]).startsWith("1 ")) { // it still has its futures
            throw new IllegalStateException("not what was waited for");
        }
        Ciel.tailSpawn(new Sum(made));
    }

    static class Square implements FirstClassJavaTask {
        private final int number;
        private final long pauseMs;

        Square(int number, long pauseMs) {
            this.number = number;
            this.pauseMs = pauseMs;
        }

        public void setup() {}

        public Ref[] getDependencies() {
            return new Ref[0];
        }

        public void invoke() throws Exception {
            Ref words = Ciel.getRefFromPackage("words");
            if (Ciel.cached("words") == null) {
                Ciel.cache("words", Ciel.stringOfRef(words), words);
            }
            String text = (String) Ciel.cached("words"); // one word
            Path host = Files.readSymbolicLink(Paths.get("/proc/self/ns/net"));
            Thread.sleep(pauseMs);
            // Every second result is longer than an inline value.
            String filler = " ".repeat(number % 2 == 0 ? 5000 : 0);
            Ciel.returnPlainString(number * number + " " + text + " " + host + filler);
        }
    }

    static class Sum implements FirstClassJavaTask {
        private final Ref[] parts;

        Sum(Ref[] parts) {
            this.parts = parts;
        }

        public void setup() {}

        public Ref[] getDependencies() {
            return parts;
        }

        public void invoke() throws Exception {
            int sum = 0;
            StringBuilder words = new StringBuilder();
            Set<String> hosts = new HashSet<>();
            for (Ref part : parts) {
                String[] found = Ciel.stringOfRef(part).split(" ");
                sum += Integer.parseInt(found[0]);
                words.append(' ').append(found[1]);
                hosts.add(found[2]);
            }
            Ciel.log("a sum of " + parts.length);
            Ciel.returnPlainString(sum + words.toString() + ", on hosts: " + hosts.size());
        }
    }
}
