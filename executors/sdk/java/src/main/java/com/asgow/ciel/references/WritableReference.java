package com.asgow.ciel.references;

import ciel.sdk.Output;
import java.io.IOException;
import java.io.OutputStream;

/** An open output. */
public class WritableReference {
    private final Output output;

    public WritableReference(Output output) {
        this.output = output;
    }

    public String getFilename() {
        return output.path();
    }

    public int getIndex() {
        return output.index();
    }

    /** Returns a stream for writing; closing it publishes the output. */
    public OutputStream open() throws IOException {
        return output;
    }

    /** Publishes the output, which the program has written to the file itself. */
    public void close() {
        try {
            output.closeAsWritten();
        } catch (IOException error) {
            throw new RuntimeException(error);
        }
    }

    /** Does the same; the worker knows the size of the file. */
    public void close(long size) {
        close();
    }

    /** Returns the reference of the published output. */
    public Reference getCompletedRef() {
        return new Reference(output.ref());
    }
}
