"""The base of the store suite: the hooks that a store implements, and the selection of tests."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import xxhash

from ciel.storage.interface import Capabilities, ObjectStore

PAGE_BYTES = 4096
Test = TypeVar("Test", bound=Callable[..., Any])


def needs(*capabilities: str) -> Callable[[Test], Test]:
    """Collect a test only for stores that declare these capabilities."""

    def mark(test: Test) -> Test:
        test.needed_capabilities = capabilities  # type: ignore[attr-defined]  # read at collection
        return test

    return mark


def start_child(body: Callable[[], None]) -> int:
    """Run a function in a forked process; its exit status is 0, or 1 if the function raises."""
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def exit_code(pid: int) -> int:
    """Wait for a child; return its exit status, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digest(content: bytes) -> str:
    """Return the checksum that a store must report."""
    return str(xxhash.xxh3_64(content).hexdigest())


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Return content in which no two pages are equal."""
    words = range(seed, seed + size_bytes // 8 + 1)
    return b"".join(word.to_bytes(8, "little") for word in words)[:size_bytes]


class StoreRules:
    """The hooks of a store, and the fixture that opens a store for each test."""

    capabilities: ClassVar[Capabilities]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "capabilities"):
            return  # a part of the suite
        tests = {
            name: test
            for base in reversed(cls.__mro__)
            for name, test in vars(base).items()
            if name.startswith("test_") and test is not None
        }
        for name, test in tests.items():
            needed = getattr(test, "needed_capabilities", ())
            is_wanted = all(getattr(cls.capabilities, capability) for capability in needed)
            setattr(cls, name, test if is_wanted else None)

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> ObjectStore:
        """Open the store of this directory. If processes can share a store, each call opens the
        same one. Without a capacity, the store must have space for 32 MiB.
        """
        raise NotImplementedError

    def raw_get(self, where: Path, object_id: str) -> bytes | None:
        """Read a committed object without the store's code; return None if it does not exist."""
        raise NotImplementedError

    def raw_put(self, where: Path, object_id: str, content: bytes) -> None:
        """Write a committed object without the store's code."""
        raise NotImplementedError

    def raw_damage(self, where: Path, object_id: str) -> None:
        """Flip one bit of a committed object."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ObjectStore]:
        with self.make_store(tmp_path) as store:
            yield store
