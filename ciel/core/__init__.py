"""Pure values and rules: ids, references, tasks, the graph. Knows no clock, no socket and no
process.
"""
