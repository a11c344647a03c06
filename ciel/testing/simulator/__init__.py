"""A simulator of whole clusters: real state machines, with a simulated network, clock and disks."""
