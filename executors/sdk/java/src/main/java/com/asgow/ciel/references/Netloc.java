package com.asgow.ciel.references;

import java.io.Serializable;

/** The address of a worker. */
public class Netloc implements Serializable {
    private static final long serialVersionUID = 1;

    private final String address;

    public Netloc(String address) {
        if (!address.matches("[^:]+:[0-9]+")) {
            throw new IllegalArgumentException(address + " must have the form HOST:PORT");
        }
        this.address = address;
    }

    public Netloc(String host, short port) {
        this(host + ":" + port);
    }

    @Override
    public String toString() {
        return address;
    }
}
