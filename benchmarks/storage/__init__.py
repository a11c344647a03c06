"""Benchmarks of stores, shared memory, disks and transfers."""
