package apps;

import com.asgow.ciel.executor.Ciel;
import com.asgow.ciel.references.Reference;
import com.asgow.ciel.tasks.FirstClassJavaTask;

public class Broken implements FirstClassJavaTask {
    private static final long serialVersionUID = 1;

    public void setup() {}

    public Reference[] getDependencies() {
        return new Reference[0];
    }

    public void invoke() {
        throw new IllegalArgumentException("broken by " + Ciel.args[0]);
    }
}
