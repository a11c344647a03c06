"""Runs jobs on real daemons while processes, hosts, disks and connections fail.

`python -m benchmarks.chaos` runs every row of the table, `python -m benchmarks.chaos W1 M1` some of
them. A row is one kind of failure; its name stands for the same failure in all documents.
"""
