"""Reads jobs and tasks from the master, and prints their results and logs."""
