"""Calls of Python functions: packs them, sends them in bundles, and settles their futures."""
