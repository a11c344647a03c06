"""Writes and reads objects for `test_mixed_stores`; the first argument of a task is an operation.

Readers publish digests together with the network namespace, which differs between hosts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

from ciel.executors.sdk import ciel_task
from ciel.testing.homes import wait_for

FIRST_BYTES: Final = 100_000
"""The length of the part of a stream that its reader gets before the rest is written."""


def content(size_bytes: int, word: str) -> bytes:
    """Return content of this size, which differs between words."""
    lines = b"".join(b"%s %d\n" % (word.encode(), number) for number in range(5000))
    return (lines * (size_bytes // len(lines) + 1))[:size_bytes]


def run(task: ciel_task.Task) -> None:
    """Carry out the operation of a task."""
    verb, *args = task.args
    VERBS[verb](task, *args)


def make(task: ciel_task.Task, size_bytes: int, word: str, runs: str) -> None:
    """Write an object; add a line to the file `runs`, which all hosts share."""
    with open(runs, "a") as file:
        file.write(f"{word}\n")
    with task.open_output() as out:
        out.write(content(size_bytes, word))


def read(task: ciel_task.Task, *refs: ciel_task.Ref) -> None:
    """Publish the digests of objects."""
    publish(task, [sha256(task.read(ref)).hexdigest() for ref in refs])


def grow(task: ciel_task.Task, size_bytes: int, word: str, mark: str) -> None:
    """Write the first part of a stream, and the rest when its reader has read that part."""
    whole = content(size_bytes, word)
    with task.open_output(0, may_stream=True) as out:
        out.write(whole[:FIRST_BYTES])
        out.flush()
        wait_for(Path(mark).exists, "a reader of the stream")
        out.write(whole[FIRST_BYTES:])


def follow(task: ciel_task.Task, ref: ciel_task.Ref, mark: str) -> None:
    """Read a stream; create the file `mark` when its first part is there."""
    with task.open_stream(ref) as stream:
        digest = sha256(stream.read(FIRST_BYTES))
        Path(mark).touch()
        digest.update(stream.read())
    publish(task, [digest.hexdigest()])


def publish(task: ciel_task.Task, digests: list[str]) -> None:
    """Publish the host and digests."""
    host = os.readlink("/proc/self/ns/net")
    task.publish(0, json.dumps([host, digests]).encode())


VERBS: Final[dict[str, Callable[..., None]]] = {
    "make": make,
    "read": read,
    "grow": grow,
    "follow": follow,
}

if __name__ == "__main__":
    ciel_task.serve(run)
