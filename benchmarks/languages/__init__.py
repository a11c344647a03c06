"""Benchmarks of Skywriting and the Python API."""
