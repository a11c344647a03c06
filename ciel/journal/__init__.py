"""The master's journal: what a restarted master needs, in files on a disk (ADR 88)."""
