"""Allocates the file of an output in the memory of another worker of this host (POOL-4).

The owner of the memory carries out the requests: its daemon makes the file, commits it and deletes
it (docs/protocol/shmd.md). The program only extends the file and writes it. The file belongs to the
connection, so the owner frees it when the program ends before the commit, however it ends.
"""

from __future__ import annotations

from ciel.shm.client import ShmdClient
from ciel.shm.errors import DaemonGoneError, RequestFailedError, ShmdError


class Lender:
    """The worker at an address, which allocates the file of one object for this program."""

    def __init__(self, netloc: str, socket: str, object_id: str) -> None:
        """`socket`: the abstract name at which its daemon listens."""
        self._client = ShmdClient.at_socket(socket)
        self._netloc = netloc
        self._object_id = object_id
        self._path = ""

    def open(self) -> str:
        """Return the path of the new file.

        Raises ValueError if no worker has this address, and MemoryError if it gives no memory.
        """
        try:
            self._path = self._client.write(self._object_id, is_mapped=True)
        except DaemonGoneError:
            text = (
                f"no worker of this cluster on this host has the address {self._netloc!r}: "
                "`ciel worker list` shows all addresses"
            )
            raise ValueError(text) from None
        except RequestFailedError as error:
            raise MemoryError(f"the worker at {self._netloc}: {error.reason}") from None
        return self._path

    def commit(self) -> bool:
        """Let the owner commit the file as the object; return whether it has done so."""
        try:
            self._client.commit(self._path, self._object_id)
        except ShmdError:
            return False
        finally:
            self._client.close()
        return True

    def give_up(self) -> None:
        """Let the owner delete the file, unless it is committed."""
        self._client.close()
