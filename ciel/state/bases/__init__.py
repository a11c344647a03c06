"""The bases: in memory, in LMDB, and those of servers."""
