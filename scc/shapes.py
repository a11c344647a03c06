"""The values that the binding of shmfs takes and returns, and its error."""

from __future__ import annotations

from typing import NamedTuple

from ciel.storage.errors import StorageError


class ShmfsError(StorageError):
    """A call of the file system failed; `reason` is the error's name in `shmfs.h`."""

    def __init__(self, operation: str, reason: str, text: str) -> None:
        self.operation = operation
        self.reason = reason
        super().__init__(f"shmfs {operation}: {text}")


class Geometry(NamedTuple):
    """The geometry of an image; zero means the default of `shmfs.h`."""

    block_bytes: int = 0
    block_count: int = 0
    inode_count: int = 0
    entry_count: int = 0
    client_count: int = 0
    handle_count: int = 0
    shard_count: int = 0


class Info(NamedTuple):
    """The status of a file; see `struct shmfs_info`."""

    inode: int
    generation: int
    size_bytes: int
    block_count: int
    link_count: int
    handle_count: int
    is_committed: bool
    is_writing: bool
    is_contiguous: bool
    tag: int


class ImageProblem(NamedTuple):
    """A broken invariant of an image: its code in FORMAT.md, and where it is broken."""

    code: str
    place: int
    detail: int
    text: str
