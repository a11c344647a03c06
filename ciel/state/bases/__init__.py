"""Bases in memory and in LMDB, and clients of bases in servers."""
