"""Measures the speed of ciel; `make bench` prints the table.

The figures are ratios, and CPU time in microseconds, against lower bounds from the same run.
"""
