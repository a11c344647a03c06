package com.asgow.ciel.rpc;

import com.asgow.ciel.references.Reference;
import com.asgow.ciel.references.WritableReference;
import com.asgow.ciel.tasks.TaskInformation;
import java.io.IOException;
import java.io.InputStream;

/**
 * The operations of a task, as the original named them.
 *
 * <p>Operations that use Gson, and operations that start or end tasks, are missing.
 */
public interface WorkerRpc {
    Reference[] spawnTask(TaskInformation task);

    void tailSpawnTask(TaskInformation task);

    String getFilenameForReference(Reference reference);

    String getFilenameForReference(Reference reference, boolean makeSweetheart);

    InputStream getStreamForReference(Reference reference) throws IOException;

    InputStream getStreamForReference(Reference reference, int chunkSize) throws IOException;

    InputStream getStreamForReference(
            Reference reference,
            int chunkSize,
            boolean soleConsumer,
            boolean makeSweetheart,
            boolean mustBlock)
            throws IOException;

    WritableReference getOutputFilename(int index);

    WritableReference getOutputFilename(
            int index, boolean mayStream, boolean mayPipe, boolean makeLocalSweetheart);

    WritableReference getNewObjectFilename(String prefix);

    Reference closeNewObject(WritableReference output);

    Reference packageLookup(String key);

    Reference tryPackageLookup(String key);

    void log(String message);

    void error(String report);
}
