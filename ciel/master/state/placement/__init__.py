"""Chooses a worker for each task."""
