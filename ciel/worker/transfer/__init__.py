"""Objects on their way between this worker, other workers and web servers."""
