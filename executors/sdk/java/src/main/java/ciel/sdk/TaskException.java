package ciel.sdk;

/** An error between a task and its worker. */
public class TaskException extends RuntimeException {
    private static final long serialVersionUID = 1;

    public TaskException(String message) {
        super(message);
    }
}
