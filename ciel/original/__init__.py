"""Compatibility with the original CIEL: its HTTP routes on the master, and the executors of its
bindings for Java (`java2`) and Python (`skypy`). The engine finds them by their entry points.
"""
