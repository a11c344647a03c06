"""Runs with a /dev/shm of 4 MiB: when it is full, the store raises an error; no signal comes."""

import os
import sys
from pathlib import Path

import pytest

from ciel.shm.store import open_shm
from ciel.storage.errors import NoSpaceError, ShortOutputError
from ciel.storage.interface import ObjectStore

OBJECT_BYTES = 64 * 1024
CREATES = 1000


def fill(store: ObjectStore, prefix: str) -> int:
    stored = 0
    for index in range(CREATES):
        try:
            store.put(f"{prefix}{index}", index.to_bytes(4, "little") * (OBJECT_BYTES // 4))
            stored += 1
        except NoSpaceError as error:
            assert error.available_bytes < error.wanted_bytes  # noqa: PT017
    return stored


def empty(store: ObjectStore) -> None:
    for object_id in list(store):
        store.delete(object_id)


def main() -> None:
    # The capacity promises more than there is: the device itself must say no.
    with open_shm({"capacity": "64MiB", "spill": "no"}, Path(sys.argv[1])) as store:
        assert store.usage().capacity_bytes == 4 * 2**20
        assert "which has 4 MiB, less than its capacity of 64 MiB" in store.about
        assert 40 < fill(store, "full") <= 64
        assert store.usage().capacity_bytes == 4 * 2**20
        assert store.check() == []
        empty(store)

        for index in range(100):
            with store.begin(f"hinted{index}", size_hint_bytes=2**20) as writer:
                writer.write(b"x")
                writer.commit()  # or the unneeded part of the reservation would fill the device
        empty(store)

        with pytest.raises(NoSpaceError) as refused:
            store.begin("large", size_hint_bytes=2**23)
        assert refused.value.wanted_bytes == 2**23
        assert 3 * 2**20 < refused.value.available_bytes <= 4 * 2**20

        with store.begin("promised", size_hint_bytes=2**20) as writer:
            assert fill(store, "beside") <= 48
            writer.write(bytes(2**20))
            writer.commit()
        empty(store)

        with store.begin("sparse") as writer:
            os.truncate(str(writer.path), 2**20)
            writer.commit()
        assert 24 < fill(store, "around") <= 48
        with store.open("sparse") as reader:
            assert reader.view() == bytes(2**20)  # had it holes, this would end us

        with store.begin("too-sparse") as writer:
            os.truncate(str(writer.path), 2**20)
            with pytest.raises(ShortOutputError):
                writer.commit()
        assert store.stat("too-sparse") is None
        store.delete("sparse")
        assert store.put("late", bytes(OBJECT_BYTES)).size_bytes == OBJECT_BYTES

    with open_shm({"spill": "no"}, Path(sys.argv[1])) as store:
        capacity_bytes = store.usage().capacity_bytes
        assert capacity_bytes is not None
        assert 2**20 < capacity_bytes <= 2**21
    assert os.listdir("/dev/shm") == []


main()
