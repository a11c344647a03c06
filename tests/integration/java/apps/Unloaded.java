package apps;

/** A class that throws while it is loaded. */
public class Unloaded {
    private static final int NUMBER = Integer.parseInt("no number");
}
