"""What the master answers over HTTP."""
