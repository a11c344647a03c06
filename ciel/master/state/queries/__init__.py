"""Answers queries about the state of a master, for clients, HTTP and users."""
