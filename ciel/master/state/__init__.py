"""The decisions of the master: events and times go in, messages to peers come out.

Imports only `ciel.core`.
"""
