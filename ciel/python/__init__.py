"""The part of the Python API that clients and tasks share: tasks, futures and their packed form."""
