"""The worker: fetches inputs, runs programs, publishes their outputs."""
