package apps;

import com.asgow.ciel.executor.Ciel;
import com.asgow.ciel.executor.FirstClassJavaTask;
import com.asgow.ciel.executor.Ref;

public class Broken implements FirstClassJavaTask {
    public void setup() {}

    public Ref[] getDependencies() {
        return new Ref[0];
    }

    public void invoke() {
        throw new IllegalArgumentException("broken by " + Ciel.args[0]);
    }
}
