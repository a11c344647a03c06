package ciel.sdk;

import java.io.IOException;

/** The producer of an object failed while this task was reading it. */
public final class StreamBrokenException extends IOException {
    private static final long serialVersionUID = 1;

    StreamBrokenException(String message) {
        super(message);
    }
}
