package com.example;

import com.asgow.ciel.executor.Ciel;
import com.asgow.ciel.executor.FirstClassJavaTask;
import com.asgow.ciel.executor.Ref;

/** Pi by so many terms of the series of Leibniz. */
public class Pi implements FirstClassJavaTask {
    public void setup() {}

    public Ref[] getDependencies() {
        return new Ref[0];
    }

    public void invoke() throws Exception {
        double sum = 0;
        for (int i = Integer.parseInt(Ciel.args[0]) - 1; i >= 0; i--) {
            sum += (i % 2 == 0 ? 4.0 : -4.0) / (2 * i + 1);
        }
        Ciel.returnPlainString(sum + "\n");
    }
}
