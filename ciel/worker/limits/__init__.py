"""Limits on the space and the memory that running programs take."""
