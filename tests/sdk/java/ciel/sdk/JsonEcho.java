package ciel.sdk;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/** Reads texts with their lengths, and writes what the SDK's JSON makes of each; nothing: no JSON. */
public final class JsonEcho {
    public static void main(String[] argv) throws IOException {
        DataInputStream in = new DataInputStream(System.in);
        DataOutputStream out = new DataOutputStream(System.out);
        while (true) {
            byte[] text;
            try {
                text = new byte[in.readInt()];
            } catch (EOFException end) {
                break;
            }
            in.readFully(text);
            byte[] echo = echo(new String(text, StandardCharsets.UTF_8));
            out.writeInt(echo.length);
            out.write(echo);
        }
        out.flush();
    }

    private static byte[] echo(String text) {
        try {
            return Json.write(Json.parse(text)).getBytes(StandardCharsets.UTF_8);
        } catch (TaskException error) {
            return new byte[0];
        }
    }
}
