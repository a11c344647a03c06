"""Executors: what to start for a task, with which arguments, and what its end means. All pure."""
