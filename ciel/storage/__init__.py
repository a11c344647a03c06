"""Stores of write-once objects: the interface of every store, and the store of plain files.

Start with `interface`. The engine finds stores by name (entry points `ciel.stores`), and uses only
their interface and capabilities. The tests of a new store inherit `ciel.testing.store_suite`
(CIB-54).
"""
