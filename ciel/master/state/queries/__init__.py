"""Answers what clients, HTTP and people ask about the state of a master."""
