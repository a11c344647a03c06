"""Bytes to and from workers, over HTTP."""
