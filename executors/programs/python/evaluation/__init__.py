"""Runs calls and their children, in this program or in others."""
