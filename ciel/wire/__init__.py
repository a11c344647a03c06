"""The wire formats: JSON, frames, sessions, and the records of every protocol.

Each pair of processes has exactly one protocol, and this package has the encoder and the decoder of
each. It converts bytes to values and back, and uses no socket, file or clock; `files` alone opens
files.
"""
