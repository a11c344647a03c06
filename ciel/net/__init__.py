"""Twisted and pycurl: control connections, HTTP for people and programs, and transfers of bytes.

Everything here acts and nothing decides: values come from `wire` and `core.events`, and go to the
service that owns the connection. Nothing imports the global reactor; it is always passed in.
"""
