"""Attempts at tasks: from the order to start one to the report of its end."""
