package uk.co.mrry.mercator.task;

import java.io.InputStream;
import java.io.OutputStream;

/** The older name of {@link com.asgow.ciel.simple.Task}. */
public interface Task {
    void invoke(InputStream[] inputs, OutputStream[] outputs, String[] args);
}
