"""The program that runs calls of Python functions; `main` has its main loop."""
