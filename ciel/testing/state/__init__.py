"""Tests that every key-value base must pass (KVB-2 to KVB-4)."""
