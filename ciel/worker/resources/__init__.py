"""The HTTP routes of a worker."""
