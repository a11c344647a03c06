"""Memory without coherent caches: a file system, message buffers and rings in C; their bindings.

The contracts stand in `include/`, the bytes in `FORMAT.md`. Found by name, as `scc`.
"""
