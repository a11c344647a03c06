"""How values look outside: the one JSON seam, frames, sessions, and the languages spoken over them.

Between two neighbours lies exactly one language, and both its ends are written here, next to each
other. Bytes go in and values come out; nothing in this room opens a socket, a file or a clock.
"""
