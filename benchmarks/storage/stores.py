"""Measures writing to reused memory, opening an object, and moving objects to a lower level.

`in_place`: write 1 GiB in place into the segment of a deleted object (`shm` with an arena), against
a memset into anonymous pages that were touched before; in alternation, medians of nine.
`open_us`: open a committed object by its id, and close it. `down_gb_per_s`: move 22 objects of
16 MiB from memory to the disk, against writing one object of this size to 22 files by `sendfile`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path

from ciel.shm.store import ShmStore
from ciel.storage.files import FileStore
from ciel.storage.shelf import ShelfOptions
from ciel.storage.tiers import TieredStore

SIZE_BYTES = 1 << 30
PAIRS = 9
OPENS = 20_000
PIECE_BYTES, PIECES = 16 << 20, 24


def fill(view: memoryview, value: int) -> float:
    """Fill a memory view; return GB/s."""
    place = (ctypes.c_char * len(view)).from_buffer(view)
    start_s = time.perf_counter()
    ctypes.memset(ctypes.addressof(place), value, len(view))
    return len(view) / (time.perf_counter() - start_s) / 1e9


def write_in_place(store: ShmStore, number: int) -> float:
    """Write an object in place, from `begin` to `commit`; return GB/s."""
    start_s = time.perf_counter()
    with store.begin(f"large{number}", size_hint_bytes=SIZE_BYTES) as writer:
        view = writer.view(SIZE_BYTES)
        fill(view, number)
        view.release()
        writer.commit()
    took_s = time.perf_counter() - start_s
    store.delete(f"large{number}")
    return SIZE_BYTES / took_s / 1e9


def in_place() -> dict[str, float | str]:
    """Return the speed of writing in place, of writing to new memory, and of a memset."""
    ours, touched = [], []
    anonymous = mmap.mmap(-1, SIZE_BYTES)
    with ShmStore(f"bench-{os.getpid()}", 8 << 30, uses_arena=True) as store:
        fresh = write_in_place(store, 0)
        fill(memoryview(anonymous), 0)
        for number in range(1, PAIRS + 1):
            ours.append(write_in_place(store, number))
            touched.append(fill(memoryview(anonymous), number))
        about = store.about
    pairs = zip(ours, touched, strict=True)
    return {
        "place": about,
        "fresh_gb_per_s": fresh,
        "in_place_gb_per_s": statistics.median(ours),
        "memset_gb_per_s": statistics.median(touched),
        "in_place_ratio": statistics.median([one / other for one, other in pairs]),
    }


def open_us() -> float:
    """Return the time of opening and closing an object through both levels."""
    with tempfile.TemporaryDirectory() as directory:
        lower = FileStore(Path(directory), ShelfOptions())
        with TieredStore(ShmStore(f"bench-{os.getpid()}", 64 << 20), lower) as store:
            store.put("a", bytes(100_000))
            start_s = time.perf_counter()
            for _ in range(OPENS):
                store.open("a").close()
            return (time.perf_counter() - start_s) / OPENS * 1e6


def down() -> dict[str, float]:
    """Return the rate at which objects move to the lower level, and the rate of `sendfile`."""
    capacity_bytes = PIECES * PIECE_BYTES
    with tempfile.TemporaryDirectory() as directory:
        lower = FileStore(Path(directory, "lower"), ShelfOptions())
        memory = ShmStore(f"bench-{os.getpid()}", capacity_bytes)
        with TieredStore(memory, lower) as store:
            content = os.urandom(PIECE_BYTES)
            for number in range(PIECES - 2):
                store.put(f"o{number}", content)
            start_s = time.perf_counter()
            store.mover.want(store, capacity_bytes)
            while len(list(memory)) > 0:
                store.mover.await_change(store.mover.changes, 1.0)
            ours = store.levels()[0].evicted_bytes / (time.perf_counter() - start_s) / 1e9
            store.mover.want_no_more(store)
            memory.put("plain", content)
            start_s = time.perf_counter()
            for number in range(PIECES - 2):
                with memory.open("plain") as reader, open(f"{directory}/{number}", "wb") as file:
                    os.sendfile(file.fileno(), reader.fileno(), 0, PIECE_BYTES)
            sendfile_gb_per_s = (PIECES - 2) * PIECE_BYTES / (time.perf_counter() - start_s) / 1e9
    return {"down_gb_per_s": ours, "sendfile_gb_per_s": sendfile_gb_per_s}


def measure() -> dict[str, float | str]:
    """Return all figures."""
    return {**in_place(), "open_us": open_us(), **down()}


if __name__ == "__main__":
    print(json.dumps(measure()))
