package com.asgow.ciel.executor;

import java.io.Serializable;

public interface FirstClassJavaTask extends Serializable {
    void setup() throws Exception;

    void invoke() throws Exception;

    Ref[] getDependencies();
}
