"""Benchmarks: ratios, and CPU time in microseconds, against lower bounds measured in the same run;
`make bench` prints the table.
"""
