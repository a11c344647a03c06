"""The level of stores in memory of other machines: its pages, and the objects there."""
