/* Replaces the Java side of the original CIEL in tests, and behaves as it did. */
package com.asgow.ciel.executor;

import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.io.ObjectStreamClass;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

public final class Java2Executor {
    private static final Jars JARS = new Jars();

    /** Adds the jars of a later task to those that the JVM was started with. */
    private static final class Jars extends URLClassLoader {
        private final Set<String> known = new HashSet<>();

        Jars() {
            super(new URL[0], Java2Executor.class.getClassLoader());
        }

        void add(Ref jar, String path) throws MalformedURLException {
            if (known.add(jar.id)) {
                addURL(Paths.get(path).toUri().toURL());
            }
        }
    }

    public static void main(String[] argv) throws Exception {
        Ciel.RPC = new Rpc(argv[1], argv[3]);
        while (true) {
            List<Object> frame = Ciel.RPC.next();
            if (frame == null || frame.get(0).equals("die")) {
                System.exit(0);
            }
            try {
                run(Rpc.object(frame.get(1)));
            } catch (Throwable error) {
                error.printStackTrace();
                Ciel.RPC.tell("error", Map.of("report", error.toString()));
                System.exit(1);
            }
        }
    }

    private static void run(Map<String, Object> told) throws Exception {
        Ciel.jarLib = Rpc.refs(told.get("jar_lib"));
        for (Ref jar : Ciel.jarLib) {
            JARS.add(jar, Ciel.open(jar, true));
        }
        Ciel.args = Rpc.texts(told.get("args"));
        FirstClassJavaTask task;
        if (told.containsKey("class_name")) {
            Class<?> named = Class.forName((String) told.get("class_name"), true, JARS);
            task = (FirstClassJavaTask) named.getDeclaredConstructor().newInstance();
        } else {
            String path = Ciel.open((Ref) told.get("object_ref"), true);
            try (ObjectInputStream in = new Objects(Files.newInputStream(Paths.get(path)))) {
                task = (FirstClassJavaTask) in.readObject();
            }
        }
        task.setup();
        task.invoke();
        Ciel.exit("may_keep");
    }

    private static final class Objects extends ObjectInputStream {
        Objects(InputStream in) throws IOException {
            super(in);
        }

        @Override
        protected Class<?> resolveClass(ObjectStreamClass described)
                throws IOException, ClassNotFoundException {
            return Class.forName(described.getName(), false, JARS);
        }
    }
}
