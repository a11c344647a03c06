package com.asgow.ciel.executor;

import ciel.sdk.Ref;
import ciel.sdk.Task;
import ciel.sdk.TaskProgram;
import com.asgow.ciel.references.Reference;
import com.asgow.ciel.tasks.FirstClassJavaTask;
import java.io.IOException;

/**
 * Runs tasks of the executor "java2": classes for the SDK, and classes for the original.
 *
 * <p>It has the name of the original's main class, so that the original's bindings run instead of
 * the SDK if they are among the jars of a task.
 */
public final class Java2Executor {
    public static void main(String[] argv) throws IOException {
        Task.serve(argv, Java2Executor::run);
        System.exit(0); // also if a task left threads running
    }

    private static void run(Task task) throws Exception {
        Ciel.start(task);
        Object program = program(task);
        if (program instanceof TaskProgram) {
            ((TaskProgram) program).run(task);
        } else if (program instanceof FirstClassJavaTask) {
            ((FirstClassJavaTask) program).setup();
            ((FirstClassJavaTask) program).invoke();
        } else {
            throw task.fail(
                    program.getClass().getName()
                            + " implements neither ciel.sdk.TaskProgram nor "
                            + FirstClassJavaTask.class.getName());
        }
        Ciel.softCache.report(task);
    }

    private static Object program(Task task) throws Exception {
        Object object = task.start().get("object_ref");
        if (object instanceof Ref) {
            return Ciel.readObject(new Reference((Ref) object));
        }
        String name = (String) task.start().get("class_name");
        try {
            Class<?> type = Class.forName(name, true, Ciel.CLASSLOADER);
            return type.getDeclaredConstructor().newInstance();
        } catch (ClassNotFoundException error) {
            throw task.fail("no jar of 'jar_lib' has a class " + name);
        } catch (NoSuchMethodException | IllegalAccessException error) {
            throw task.fail(
                    name + " must be public, with a public constructor without arguments");
        }
    }
}
