"""Runs calls and what they spawn, in this program or as tasks of their own."""
