"""A simulator of whole clusters: real state machines, imaginary network, clock and disks."""
