"""Pure values and rules: ids, references, tasks and the task graph.

Nothing here uses a clock, a socket or a process.
"""
