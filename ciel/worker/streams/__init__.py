"""Objects that tasks read while they are still being written."""
