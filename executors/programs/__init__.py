"""Programs of our own that executors run; each knows nothing of the engine but its protocol."""
