package ciel.sdk;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;

/** An object that may still be growing; at the end of its file, reading asks the worker. */
final class GrowingInput extends InputStream {
    private final Task task;
    private final String id;
    private final long chunkBytes;
    private final FileInputStream file;
    private final boolean isAnnounced; // the worker waits for `close_stream`
    private boolean endsHere; // the end of the file is the end of the object
    private long sizeBytes; // known to be available
    private long position;
    private boolean isClosed;

    GrowingInput(Task task, String id, long chunkBytes, Map<String, Object> opened)
            throws IOException {
        this.task = task;
        this.id = id;
        this.chunkBytes = chunkBytes;
        file = new FileInputStream((String) opened.get("filename"));
        boolean isDone = opened.get("done").equals(true);
        isAnnounced = !isDone;
        endsHere = isDone || opened.get("blocking").equals(true);
        sizeBytes = opened.get("size") instanceof Long ? (Long) opened.get("size") : 0;
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] bytes, int from, int count) throws IOException {
        if (count == 0) {
            return 0;
        }
        while (true) {
            int got = file.read(bytes, from, count);
            if (got > 0) {
                position += got;
                return got;
            }
            if (endsHere) {
                break;
            }
            waitForMore();
        }
        if (position < sizeBytes) {
            String read = position + " of " + sizeBytes + " bytes";
            throw new StreamBrokenException(id + " ended after " + read);
        }
        return -1;
    }

    private void waitForMore() throws IOException {
        Map<String, Object> wanted = Map.of("id", id, "bytes", position + chunkBytes);
        Map<String, Object> grown = Channel.object(task.call("wait_stream", wanted));
        if (!grown.get("success").equals(true)) {
            throw new StreamBrokenException(id + " broke off after " + position + " bytes");
        }
        sizeBytes = (Long) grown.get("size");
        endsHere = grown.get("done").equals(true);
    }

    @Override
    public void close() throws IOException {
        if (isClosed) {
            return;
        }
        isClosed = true;
        file.close();
        if (isAnnounced && !task.isOver()) {
            task.tell("close_stream", Map.of("id", id, "chunk_size", chunkBytes));
        }
    }
}
