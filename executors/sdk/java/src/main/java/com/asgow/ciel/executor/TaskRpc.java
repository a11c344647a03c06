package com.asgow.ciel.executor;

import ciel.sdk.Ref;
import ciel.sdk.Task;
import com.asgow.ciel.references.Reference;
import com.asgow.ciel.references.WritableReference;
import com.asgow.ciel.rpc.ReferenceUnavailableException;
import com.asgow.ciel.rpc.WorkerRpc;
import com.asgow.ciel.tasks.TaskInformation;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;

/** The original's operations, carried out by a task of the SDK. */
final class TaskRpc implements WorkerRpc {
    private static final int CHUNK_BYTES = 64 << 20; // as in the original

    private final Task task;

    TaskRpc(Task task) {
        this.task = task;
    }

    @Override
    public Reference[] spawnTask(TaskInformation child) {
        return Reference.of(task.spawn(child.toChild()));
    }

    @Override
    public void tailSpawnTask(TaskInformation child) {
        task.tailSpawn(child.toChild());
    }

    @Override
    public String getFilenameForReference(Reference reference) {
        return getFilenameForReference(reference, false);
    }

    @Override
    public String getFilenameForReference(Reference reference, boolean makeSweetheart) {
        Map<String, Object> args =
                Map.of("ref", reference.ref(), "make_sweetheart", makeSweetheart);
        Object filename = ((Map<?, ?>) task.call("open_ref", args)).get("filename");
        if (filename == null) {
            throw new ReferenceUnavailableException(reference);
        }
        return (String) filename;
    }

    @Override
    public InputStream getStreamForReference(Reference reference) throws IOException {
        return getStreamForReference(reference, CHUNK_BYTES);
    }

    @Override
    public InputStream getStreamForReference(Reference reference, int chunkSize)
            throws IOException {
        return getStreamForReference(reference, chunkSize, false, false, false);
    }

    @Override
    public InputStream getStreamForReference(
            Reference reference,
            int chunkSize,
            boolean soleConsumer,
            boolean makeSweetheart,
            boolean mustBlock)
            throws IOException {
        Map<String, Object> options =
                Map.of(
                        "sole_consumer", soleConsumer,
                        "make_sweetheart", makeSweetheart,
                        "must_block", mustBlock);
        return task.openStream(reference.ref(), chunkSize, options);
    }

    @Override
    public WritableReference getOutputFilename(int index) {
        return getOutputFilename(index, false, false, false);
    }

    @Override
    public WritableReference getOutputFilename(
            int index, boolean mayStream, boolean mayPipe, boolean makeLocalSweetheart) {
        Map<String, Object> options =
                Map.of(
                        "may_stream", mayStream,
                        "may_pipe", mayPipe,
                        "make_local_sweetheart", makeLocalSweetheart);
        try {
            return new WritableReference(task.openOutput(index, options));
        } catch (IOException error) {
            throw new RuntimeException(error);
        }
    }

    @Override
    public WritableReference getNewObjectFilename(String prefix) {
        return getOutputFilename(task.allocate(prefix));
    }

    @Override
    public Reference closeNewObject(WritableReference output) {
        output.close();
        return output.getCompletedRef();
    }

    @Override
    public Reference packageLookup(String key) {
        return task.lookUp(key).map(Reference::new).orElse(null);
    }

    @Override
    public Reference tryPackageLookup(String key) {
        return packageLookup(key);
    }

    @Override
    public void log(String message) {
        task.log(message);
    }

    @Override
    public void error(String report) {
        throw task.fail(report);
    }

    void blockOn(Reference... references) {
        task.blockOn(Reference.refs(references).toArray(new Ref[0]));
    }
}
