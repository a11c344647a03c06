"""Executors and pools with the interface of the standard library, whose calls run on a cluster."""
