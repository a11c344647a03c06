"""Registers the cores that share an image; each core has its own object names."""
