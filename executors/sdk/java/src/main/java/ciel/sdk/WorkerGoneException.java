package ciel.sdk;

/** The worker has ended the conversation in the middle of a task. */
public final class WorkerGoneException extends TaskException {
    private static final long serialVersionUID = 1;

    WorkerGoneException(String message) {
        super(message);
    }
}
