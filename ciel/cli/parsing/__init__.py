"""Reads command lines: parsers, shared options, selectors, and the grammar of all commands."""
