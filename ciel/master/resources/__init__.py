"""The master's HTTP resources."""
