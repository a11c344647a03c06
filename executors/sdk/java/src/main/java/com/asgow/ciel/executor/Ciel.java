package com.asgow.ciel.executor;

import ciel.sdk.Ref;
import ciel.sdk.Task;
import com.asgow.ciel.references.CielFuture;
import com.asgow.ciel.references.Reference;
import com.asgow.ciel.references.WritableReference;
import com.asgow.ciel.rpc.WorkerRpc;
import com.asgow.ciel.tasks.ConstantNumOutputsTask;
import com.asgow.ciel.tasks.FirstClassJavaTask;
import com.asgow.ciel.tasks.FirstClassJavaTaskInformation;
import com.asgow.ciel.tasks.SingleOutputTask;
import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.ObjectStreamClass;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.List;

/** The task that runs in this JVM, for programs that were written for the original. */
public final class Ciel {
    public static WorkerRpc RPC;
    public static ClassLoader CLASSLOADER = Ciel.class.getClassLoader();
    public static Reference[] jarLib;
    public static String[] args;
    public static SoftCache softCache = new SoftCache();

    private Ciel() {}

    static void start(Task task) {
        RPC = new TaskRpc(task);
        Object jars = task.start().get("jar_lib");
        jarLib = Reference.of(jars instanceof List ? (List<?>) jars : List.of());
        args = task.args().stream().map(String::valueOf).toArray(String[]::new);
    }

    public static void log(String message) {
        RPC.log(message);
    }

    public static Reference[] spawn(FirstClassJavaTask task, String[] args, int numOutputs)
            throws IOException {
        Reference object = writeObject(RPC.getNewObjectFilename("obj"), task);
        return RPC.spawnTask(
                waiting(
                        new FirstClassJavaTaskInformation(object, jarLib, args, numOutputs), task));
    }

    public static Reference[] spawn(
            Class<? extends FirstClassJavaTask> type, String[] args, int numOutputs) {
        return RPC.spawnTask(new FirstClassJavaTaskInformation(type, jarLib, args, numOutputs));
    }

    public static Reference[] spawn(ConstantNumOutputsTask task) throws IOException {
        return spawn(task, new String[0], task.getNumOutputs());
    }

    public static <T> CielFuture<T> spawn(
            Class<? extends SingleOutputTask<T>> type, String[] args) {
        return new CielFuture<>(spawn(type, args, 1)[0]);
    }

    public static <T> CielFuture<T> spawnSingle(SingleOutputTask<T> task) throws IOException {
        return new CielFuture<>(spawn(task, null, 1)[0]);
    }

    public static void tailSpawn(FirstClassJavaTask task) throws IOException {
        tailSpawn(task, new String[0]);
    }

    public static void tailSpawn(FirstClassJavaTask task, String[] args) throws IOException {
        Reference object = writeObject(RPC.getNewObjectFilename("obj"), task);
        RPC.tailSpawnTask(
                waiting(new FirstClassJavaTaskInformation(object, jarLib, args), task));
    }

    private static FirstClassJavaTaskInformation waiting(
            FirstClassJavaTaskInformation child, FirstClassJavaTask task) {
        for (Reference dependency : task.getDependencies()) {
            child.addDependency(dependency);
        }
        return child;
    }

    public static <T> void returnObject(T result) throws IOException {
        writeObject(RPC.getOutputFilename(0), result);
    }

    private static Reference writeObject(WritableReference output, Object value)
            throws IOException {
        try (ObjectOutputStream out = new ObjectOutputStream(output.open())) {
            out.writeObject(value);
        }
        return output.getCompletedRef();
    }

    public static void returnInt(int value) throws IOException {
        returnInt(value, 0);
    }

    /** Writes the lowest byte of a number in a stream of Java's serialization, as the original. */
    public static void returnInt(int value, int index) throws IOException {
        try (ObjectOutputStream out =
                new ObjectOutputStream(RPC.getOutputFilename(index).open())) {
            out.write(value);
        }
    }

    public static void returnPlainString(String value) throws IOException {
        returnPlainString(value, 0);
    }

    public static void returnPlainString(String value, int index) throws IOException {
        try (OutputStream out = RPC.getOutputFilename(index).open()) {
            out.write(value.getBytes(StandardCharsets.UTF_8));
        }
    }

    public static void blockOn(Reference... references) {
        ((TaskRpc) RPC).blockOn(references);
    }

    public static String stringOfRef(Reference reference) {
        try {
            String path = RPC.getFilenameForReference(reference);
            return new String(Files.readAllBytes(Paths.get(path)), StandardCharsets.UTF_8);
        } catch (IOException error) {
            throw new RuntimeException(error);
        }
    }

    /** Returns the references in an entry of the package; null if the entry is missing. */
    public static Reference[] getRefsFromPackage(String key) {
        Reference index = RPC.tryPackageLookup(key);
        return index == null ? null : Reference.of((List<?>) Ref.parse(stringOfRef(index)));
    }

    /** Returns the object that a task has serialized. */
    public static Object readObject(Reference reference)
            throws IOException, ClassNotFoundException {
        InputStream content =
                Files.newInputStream(Paths.get(RPC.getFilenameForReference(reference)));
        try (ObjectInputStream in = new Objects(content)) {
            return in.readObject();
        }
    }

    /** Finds classes by the loader of this task. */
    private static final class Objects extends ObjectInputStream {
        Objects(InputStream in) throws IOException {
            super(in);
        }

        @Override
        protected Class<?> resolveClass(ObjectStreamClass described)
                throws IOException, ClassNotFoundException {
            try {
                return Class.forName(described.getName(), false, CLASSLOADER);
            } catch (ClassNotFoundException error) {
                return super.resolveClass(described); // such as a primitive type
            }
        }
    }
}
