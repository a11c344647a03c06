package ciel.sdk;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.Map;

/**
 * An open output: a buffered file.
 *
 * <p>After `close`, the next call of the task or its successful end publishes the output. So an
 * exception that leaves a try-with-resources statement, and fails the task, publishes nothing.
 */
public final class Output extends OutputStream {
    private static final int BUFFER_BYTES = 64 << 10;

    private final Task task;
    private final int index;
    private final String path;
    private final FileOutputStream file;
    private final byte[] buffer = new byte[BUFFER_BYTES];
    private int buffered;
    private long sizeBytes;
    private boolean isClosed;
    private Ref ref;

    Output(Task task, int index, String path) throws IOException {
        this.task = task;
        this.index = index;
        this.path = path;
        file = new FileOutputStream(path);
    }

    /** Returns the name of the file. */
    public String path() {
        return path;
    }

    public int index() {
        return index;
    }

    @Override
    public void write(int value) throws IOException {
        requireOpen();
        if (buffered == buffer.length) {
            flush();
        }
        buffer[buffered++] = (byte) value;
        sizeBytes++;
    }

    @Override
    public void write(byte[] bytes, int from, int count) throws IOException {
        requireOpen();
        if (count > buffer.length - buffered) {
            flush();
        }
        if (count > buffer.length) {
            file.write(bytes, from, count);
        } else {
            System.arraycopy(bytes, from, buffer, buffered, count);
            buffered += count;
        }
        sizeBytes += count;
    }

    private void requireOpen() throws IOException {
        if (isClosed) {
            throw new IOException("output " + index + " is closed");
        }
    }

    /** Makes the data visible to tasks that read the output while it grows. */
    @Override
    public void flush() throws IOException {
        file.write(buffer, 0, buffered);
        buffered = 0;
    }

    @Override
    public void close() throws IOException {
        if (isClosed) {
            return;
        }
        flush();
        file.close();
        isClosed = true;
    }

    /** Closes the output after other code has written to its file by its path. */
    public void closeAsWritten() throws IOException {
        close();
        sizeBytes = new File(path).length();
    }

    /** Discards the written data; the output may be opened again. */
    public void rollBack() {
        if (!task.forget(this)) {
            return;
        }
        isClosed = true;
        try {
            file.close();
        } catch (IOException error) {
            // the data is discarded in any case
        }
        task.call("rollback_output", Map.of("index", index));
    }

    /** Publishes the closed output, and returns its reference. */
    public Ref ref() {
        if (!isClosed) {
            throw new TaskException("close output " + index + " before you use its reference");
        }
        task.publishClosed();
        if (ref == null) {
            throw new TaskException("output " + index + " was not published");
        }
        return ref;
    }

    boolean isClosed() {
        return isClosed;
    }

    void publish(Channel channel) {
        Map<String, Object> args = Map.of("index", index, "size", sizeBytes);
        ref = (Ref) Channel.object(channel.ask("close_output", args)).get("ref");
    }
}
