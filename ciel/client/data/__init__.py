"""Moves bytes to and from workers, over HTTP."""
