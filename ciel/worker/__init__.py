"""The worker: fetches inputs, runs programs, publishes what they made."""
