"""Writes to standard output, to files and to the terminal."""
