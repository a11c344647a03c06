"""Values, and scripts that run: trees as closures, which can stop and be resumed."""
