package apps;

import com.asgow.ciel.simple.Task;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;

/** For the original's executor "java": writes lines with a word to one output, and the rest to a second. */
public class Lines implements Task, uk.co.mrry.mercator.task.Task { // its older name, too
    public void invoke(InputStream[] in, OutputStream[] out, String[] args) {
        try {
            write(in, out, args);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void write(InputStream[] in, OutputStream[] out, String[] args)
            throws IOException {
        if (args.length == 0) {
            throw new IllegalArgumentException("no word to look for");
        }
        for (InputStream input : in) {
            BufferedReader lines =
                    new BufferedReader(new InputStreamReader(input, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                int which = line.contains(args[0]) ? 0 : 1;
                out[which].write((line + "\n").getBytes(StandardCharsets.UTF_8));
            }
        }
        System.out.println("looked for " + args[0]);
    }
}
