"""The interface between executors and the worker: tasks, actions, attempts and outputs."""
