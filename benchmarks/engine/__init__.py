"""Benchmarks of the graph, the daemons, and programs of all kinds."""
