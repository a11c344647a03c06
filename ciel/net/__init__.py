"""Networking with Twisted and pycurl: control connections, HTTP servers, and downloads of objects.

This package does I/O and makes no decisions: it exchanges values of `wire` and `core.events` with
the service that owns a connection. No module imports the global reactor; it is always passed in.
"""
