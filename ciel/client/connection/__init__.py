"""The connection to the master: one session over a chain of sockets."""

from ciel.client.connection.connection import Connection, open_connection

__all__ = ["Connection", "open_connection"]
