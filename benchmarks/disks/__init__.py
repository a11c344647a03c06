"""Benchmarks of disks from which files are loaded."""
