"""Skywriting: a small language for graphs of tasks that decide their own shape.

A script goes through passes, each of which depends on earlier ones only:

    text ─lexer─▶ tokens ─grammar─▶ tree ─resolver─▶ scopes ─▶ closures ─▶ a value, or a stop

A stop can be written down and resumed (`continuation`). This package does no I/O: a script reads
objects and creates tasks through a `Host`.
"""
