"""Skywriting: a small language for graphs of tasks that decide their own shape.

It comes in passes, each of which knows only those before it:

    text ─lexer─▶ tokens ─grammar─▶ tree ─resolver─▶ scopes ─▶ closures ─▶ a value, or a stop

A stop is a value, too (`continuation`). Nothing here does any I/O: what a script wants of the world
it gets from a `Host`.
"""
