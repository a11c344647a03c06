"""Executors and pools as in the standard library, for programs that use them."""
