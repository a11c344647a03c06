"""Run with a /dev/shm of 16 MiB, over a disk: a store that was promised more moves down in time."""

import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ciel.shm.store import open_shm
from ciel.storage.errors import ShortOutputError
from ciel.storage.interface import ObjectStore
from ciel.testing.homes import wait_for

MIB = 2**20
OBJECTS = 40


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (MIB // 4)


def fill(store: ObjectStore) -> None:
    for number in range(OBJECTS):
        store.put(f"part{number}", content(number))


def expect_parts(store: ObjectStore) -> None:
    for number in range(OBJECTS):
        assert store.get(f"part{number}") == content(number)


def write_wide(store: ObjectStore) -> None:
    """A writer that may wait for space is in memory then."""
    with store.begin("wide", size_hint_bytes=12 * MIB) as writer:
        path = Path(str(writer.path))
        assert path.is_relative_to("/dev/shm")
        path.write_bytes(bytes(12 * MIB))
        writer.commit()


def in_a_thread(step: Callable[[ObjectStore], None], store: ObjectStore) -> None:
    """Do something where one may wait."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            step(store)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in failed:
        raise error


def refused(path: str) -> None:
    """Write as a program does that does not look what came of it."""
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        for _ in range(OBJECTS):
            file.write(bytes(MIB))
    assert Path(path).stat().st_size < OBJECTS * MIB


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        open_shm({"capacity": "1GiB"}, Path(place)) as store,
    ):

        def free_bytes() -> int:
            memory = store.levels()[0]
            return (memory.capacity_bytes or 0) - memory.used_bytes - memory.reserved_bytes

        in_a_thread(fill, store)
        wait_for(  # objects still move: they are counted before their pages are free
            lambda: 15 * MIB <= (store.levels()[0].capacity_bytes or 0) <= 16 * MIB,
            "the capacity that the device has",
        )
        assert store.levels()[1].objects >= OBJECTS - 16
        expect_parts(store)
        wait_for(lambda: free_bytes() >= MIB, "some room for those to come")
        in_a_thread(write_wide, store)
        assert store.levels()[0].evicted > 0
        assert store.get("wide") == bytes(12 * MIB)
        expect_parts(store)

        with store.begin("short") as writer:
            refused(str(writer.path))
            assert writer.may_be_short
            with pytest.raises(ShortOutputError):
                writer.commit()
        wait_for(lambda: free_bytes() >= MIB, "some room for those to come")
        with store.begin("odd") as writer:
            refused(str(writer.path))
            writer.account()  # as the worker does now and then
            Path(str(writer.path)).write_bytes(b"odd")  # now there is room
            with pytest.raises(ShortOutputError):
                writer.commit()
        assert {"short", "odd"}.isdisjoint(store)
        wait_for(lambda: store.usage().reserved_bytes == 0, "what still moves")
    sys.exit(0)


main()
