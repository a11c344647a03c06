package apps;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

/** For the executor "java": prints on which host it runs, and the total size of its inputs. */
public class Where {
    public static void invoke(InputStream[] in, OutputStream[] out, String[] args)
            throws IOException {
        Path host = Files.readSymbolicLink(Paths.get("/proc/self/ns/net"));
        long size = 0;
        for (InputStream input : in) {
            size += input.readAllBytes().length;
        }
        out[0].write((host + "\n" + size + "\n").getBytes(StandardCharsets.UTF_8));
    }
}
