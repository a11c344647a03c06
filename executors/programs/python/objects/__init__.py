"""Objects of the store as a Python task reads and writes them."""
