"""The dynamic task graph: `task_graph` and its components, and operations on it."""
