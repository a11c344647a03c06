package sdk;

import ciel.sdk.Task;

/** A program of the executor "proc": one `main` for all its tasks. */
public final class Main {
    public static void main(String[] argv) throws Exception {
        int[] served = new int[1];
        Task.serve(argv, task -> task.publish(0, ++served[0] + " " + task.readText(task.ref(0))));
    }
}
