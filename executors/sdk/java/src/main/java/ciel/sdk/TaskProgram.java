package ciel.sdk;

/**
 * A task program. A class that a task of the executor "java2" names needs a public constructor
 * without arguments; one object is created for each task.
 */
@FunctionalInterface
public interface TaskProgram {
    /** Runs one task; an exception fails it, with its stack trace. */
    void run(Task task) throws Exception;
}
