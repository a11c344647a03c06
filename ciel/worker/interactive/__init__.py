"""Interactive programs: processes that exchange calls with this worker (the proc protocol)."""
