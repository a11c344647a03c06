"""The decisions of a worker: takes events and the time, and returns orders. Imports core only."""
