"""Memory without coherent caches: a file system, message buffers and rings in C, with bindings.

`include/` holds the contracts, `FORMAT.md` the bytes. The store is found by its name, `scc`.
"""
