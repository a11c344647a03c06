/*
 * Runs a task of the executor "java": TaskLoader CLASS JAR... Standard input has texts that end in
 * a NUL: "IN,OUT,ARGS" (the number of each), paths of inputs, paths of outputs, arguments.
 *
 * CLASS needs no base class. It must have a public method invoke(InputStream[], OutputStream[],
 * String[]), static or not. Outputs are flushed and closed when the method returns; an exception
 * fails the task.
 */
package ciel;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Paths;
import java.util.Arrays;

public final class TaskLoader {
    private static final int BUFFER_BYTES = 65536;

    public static void main(String[] argv) throws IOException {
        String text = new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
        String[] fields = text.split("\0", -1);
        String[] counts = fields[0].split(",");
        int inputs = Integer.parseInt(counts[0]);
        int outputs = Integer.parseInt(counts[1]);
        String[] arguments = new String[Integer.parseInt(counts[2])];
        System.arraycopy(fields, 1 + inputs + outputs, arguments, 0, arguments.length);

        Method invoke = find(argv);
        InputStream[] in = new InputStream[inputs];
        for (int i = 0; i < inputs; i++) {
            in[i] = new BufferedInputStream(new FileInputStream(fields[1 + i]), BUFFER_BYTES);
        }
        OutputStream[] out = new OutputStream[outputs];
        for (int i = 0; i < outputs; i++) {
            String path = fields[1 + inputs + i];
            out[i] = new BufferedOutputStream(new FileOutputStream(path), BUFFER_BYTES);
        }
        int status = call(invoke, in, out, arguments);
        for (OutputStream stream : out) {
            stream.close();
        }
        System.out.flush();
        System.exit(status); // also if the task left threads running
    }

    private static Method find(String[] argv) throws IOException {
        URL[] jars = new URL[argv.length - 1];
        for (int i = 0; i < jars.length; i++) {
            jars[i] = Paths.get(argv[i + 1]).toUri().toURL();
        }
        URLClassLoader loader = new URLClassLoader(jars, TaskLoader.class.getClassLoader());
        Thread.currentThread().setContextClassLoader(loader);
        try {
            Class<?> task = Class.forName(argv[0], true, loader);
            return task.getMethod(
                    "invoke", InputStream[].class, OutputStream[].class, String[].class);
        } catch (ClassNotFoundException error) {
            throw refuse("no jar of 'lib' has a class " + argv[0]);
        } catch (NoSuchMethodException error) {
            throw refuse(
                    argv[0]
                            + " has no public method"
                            + " invoke(InputStream[], OutputStream[], String[])");
        } catch (LinkageError error) {
            throw refuse(argv[0] + " cannot be loaded: " + error);
        }
    }

    private static int call(Method invoke, InputStream[] in, OutputStream[] out, String[] args) {
        try {
            Object task = null;
            if (!Modifier.isStatic(invoke.getModifiers())) {
                task = invoke.getDeclaringClass().getDeclaredConstructor().newInstance();
            }
            invoke.invoke(task, in, out, args);
            return 0;
        } catch (InvocationTargetException error) {
            Throwable cause = error.getCause();
            cause.setStackTrace(own(cause.getStackTrace()));
            cause.printStackTrace();
            return 1;
        } catch (ReflectiveOperationException error) {
            throw refuse(
                    invoke.getDeclaringClass().getName()
                            + " must be public, with a public constructor without arguments: "
                            + error);
        }
    }

    /** Removes the frames of this loader and of reflection. */
    private static StackTraceElement[] own(StackTraceElement[] trace) {
        int end = trace.length;
        while (end > 0 && isOurs(trace[end - 1].getClassName())) {
            end--;
        }
        return Arrays.copyOf(trace, end);
    }

    private static boolean isOurs(String name) {
        return name.equals(TaskLoader.class.getName())
                || name.startsWith("java.lang.reflect.")
                || name.startsWith("jdk.internal.reflect.");
    }

    private static RuntimeException refuse(String why) {
        System.err.println("ciel: " + why);
        System.exit(2);
        return new IllegalStateException(); // never reached, but the compiler requires it
    }
}
