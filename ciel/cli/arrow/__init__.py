"""Shows tables of Apache Arrow in objects of Python tasks, and writes them in other formats."""
