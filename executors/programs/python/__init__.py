"""The program that runs calls of Python functions; see `program`."""
