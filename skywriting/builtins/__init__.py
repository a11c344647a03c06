"""The built-in functions and values, which every script can use without binding their names."""
