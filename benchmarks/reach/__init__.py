"""Measures what it costs to run tasks isolated, and elsewhere."""
