"""Package files: jobs that are written down as JSON."""
