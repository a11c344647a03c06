"""Chooses a worker for each task, and for further copies of objects."""
