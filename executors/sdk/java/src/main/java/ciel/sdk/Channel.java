package ciel.sdk;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** This program's end of the two FIFOs: frames of JSON. */
final class Channel {
    private static final int FRAME_MAX_BYTES = 16 << 20; // the worker's limit of a call
    private static final int BUFFER_BYTES = 64 << 10; // the capacity of a pipe

    private final DataOutputStream writes;
    private final DataInputStream reads;

    private Channel(String writeFifo, String readFifo) throws IOException {
        // In the same order as the worker: an original one waits in each for the program.
        FileOutputStream out = new FileOutputStream(writeFifo);
        writes = new DataOutputStream(new BufferedOutputStream(out, BUFFER_BYTES));
        FileInputStream in = new FileInputStream(readFifo);
        reads = new DataInputStream(new BufferedInputStream(in, BUFFER_BYTES));
    }

    /** Opens the FIFOs that the last four arguments or, in an attached process, variables name. */
    static Channel open(String[] argv) throws IOException {
        int end = argv.length;
        if (end >= 4 && argv[end - 4].equals("--write-fifo") && argv[end - 2].equals("--read-fifo")) {
            return new Channel(argv[end - 3], argv[end - 1]);
        }
        String write = System.getenv("CIEL_PIPE_TO_WORKER");
        String read = System.getenv("CIEL_PIPE_FROM_WORKER");
        if (write == null || read == null) {
            throw new TaskException(
                    "this program is a task: only a worker of ciel can start it, with"
                            + " --write-fifo PATH --read-fifo PATH at the end");
        }
        return new Channel(write, read);
    }

    /** Queues a call; `flush` or the next reply sends it. */
    void send(String method, Map<String, ?> args) {
        byte[] frame = Json.write(List.of(method, args)).getBytes(StandardCharsets.UTF_8);
        if (frame.length > FRAME_MAX_BYTES) {
            throw new IllegalArgumentException(
                    "a call of " + frame.length + " bytes; at most " + FRAME_MAX_BYTES
                            + " can be sent");
        }
        try {
            writes.writeInt(frame.length);
            writes.write(frame);
        } catch (IOException error) {
            throw new WorkerGoneException("the worker accepts no more calls of this task");
        }
    }

    void flush() {
        try {
            writes.flush();
        } catch (IOException error) {
            throw new WorkerGoneException("the worker accepts no more calls of this task");
        }
    }

    /** Sends a call, and waits for its reply. */
    Object ask(String method, Map<String, ?> args) {
        send(method, args);
        List<?> reply = next();
        if (reply == null) {
            throw new WorkerGoneException("the worker ended before it replied to " + method);
        }
        if (!reply.get(0).equals(method)) {
            throw new TaskException(
                    "'" + reply.get(0) + "' was received instead of a reply to '" + method + "'");
        }
        return reply.get(1);
    }

    /** Waits for a task; null: the worker has no further task, and the program should end. */
    Map<String, Object> nextTask() {
        List<?> message = next();
        if (message == null || message.get(0).equals("die")) {
            return null;
        }
        if (!message.get(0).equals("start_task") || !(message.get(1) instanceof Map)) {
            throw new TaskException("'" + message.get(0) + "' was received instead of a task");
        }
        return object(message.get(1));
    }

    /** Waits for a frame; null at the end. */
    private List<?> next() {
        flush();
        byte[] frame;
        try {
            int size = reads.readInt();
            frame = reads.readNBytes(size);
            if (frame.length < size) {
                return null;
            }
        } catch (EOFException end) {
            return null;
        } catch (IOException error) {
            throw new WorkerGoneException("the worker cannot be read: " + error.getMessage());
        }
        Object message = Json.parse(new String(frame, StandardCharsets.UTF_8));
        if (!(message instanceof List) || ((List<?>) message).size() != 2) {
            String start = new String(Arrays.copyOf(frame, Math.min(frame.length, 200)),
                    StandardCharsets.UTF_8);
            throw new TaskException("the worker sent no method and arguments: " + start);
        }
        return (List<?>) message;
    }

    @SuppressWarnings("unchecked") // keys of Json are strings
    static Map<String, Object> object(Object value) {
        if (!(value instanceof Map)) {
            throw new TaskException("the worker sent no object: " + value);
        }
        return (Map<String, Object>) value;
    }
}
