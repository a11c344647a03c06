"""Compatibility with the original CIEL.

The package contains the original's HTTP routes on the master, and the executors for its bindings
for Java (`java2`) and Python (`skypy`). The engine finds them by their entry points.
"""
