"""Skywriting: a small language whose scripts create tasks, and use their results to create more.

A script goes through passes. Each pass depends on earlier passes only:

    text ─lexer─▶ tokens ─grammar─▶ tree ─resolver─▶ scopes ─▶ closures ─▶ a value, or a stop

A script stops when it needs an object that does not exist yet. Its state can then be written as
JSON, so that another task resumes it (`continuation`). This package does no I/O: a script reads
objects and creates tasks through a `Host`.
"""
