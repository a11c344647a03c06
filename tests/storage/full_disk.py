"""Runs on a device of 8 MiB and 50 inodes: a full disk is an error, until space is free again."""

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ciel.storage.errors import NoSpaceError
from ciel.storage.files import FileStore, open_disk

MIB = 2**20
OBJECT_BYTES = MIB


def content(index: int) -> bytes:
    return index.to_bytes(4, "little") * (OBJECT_BYTES // 4)


def fill_bytes(store: FileStore) -> None:
    for index in range(9):
        try:
            store.put(f"big{index}", content(index))
        except NoSpaceError as error:
            assert error.wanted_bytes == OBJECT_BYTES > error.available_bytes  # noqa: PT017
            break
    kept = sorted(store)
    assert 6 <= len(kept) <= 8
    with store.begin("unhinted") as writer, pytest.raises(NoSpaceError):
        writer.write(bytes(9 * MIB))
    assert sorted(store) == kept
    store.delete(kept.pop())
    store.put("late", content(99))
    assert store.get("late") == content(99)
    assert all(store.get(f"big{index}") == content(index) for index in range(len(kept)))


def fill_inodes(store: FileStore) -> None:
    made = 0
    with suppress(NoSpaceError):
        for index in range(60):
            store.put(f"tiny{index}", b"x")
            made += 1
    assert 40 < made < 50
    store.delete("tiny0")
    store.put("late-tiny", b"y")
    assert store.get("late-tiny") == b"y"


def main() -> None:
    with open_disk({}, Path(sys.argv[1]) / "store") as store:
        fill_bytes(store)
        for object_id in list(store):
            store.delete(object_id)
        fill_inodes(store)
        assert store.check() == []
        assert store.usage().reserved_bytes == 0


main()
