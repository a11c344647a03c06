"""The verbs of `ciel kv`."""
