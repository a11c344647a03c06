"""Runs scripts: compiles trees to closures, which can stop and be resumed, and defines values."""
