"""Runs, checks and formats Skywriting scripts: `sw-job` and `ciel sw`."""
