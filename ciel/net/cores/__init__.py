"""Connections between processes that share only memory (CIB-14, CIB-31)."""
