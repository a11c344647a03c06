"""The functions that each script can call."""
