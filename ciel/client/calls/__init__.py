"""Calls of Python functions: from `submit` to the future that is done."""
