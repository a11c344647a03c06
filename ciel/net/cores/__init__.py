"""What processes that share only memory use as a network (CIB-14, CIB-31)."""
