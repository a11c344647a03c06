import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/** Finds the longest line of all inputs: a task of the executor "java". */
public class Longest {
    public void invoke(InputStream[] in, OutputStream[] out, String[] args) throws IOException {
        String longest = "";
        for (InputStream input : in) {
            var lines = new BufferedReader(new InputStreamReader(input, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                longest = line.length() > longest.length() ? line : longest;
            }
        }
        out[0].write((longest + "\n").getBytes(StandardCharsets.UTF_8));
    }
}
