"""Runs the calls that a task spawns, in this program or in others."""
