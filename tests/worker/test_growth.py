"""Tests the limits on files that running programs write."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from ciel.core.ids import TaskId
from ciel.storage.errors import NoSpaceError
from ciel.storage.files import FileStore, open_disk
from ciel.storage.interface import ObjectWriter
from ciel.worker.limits.growth import (
    CHECK_S,
    STDERR_LEFT_BYTES,
    STDERR_MAX_BYTES,
    GrowingFiles,
    GrowthWatch,
    is_too_long,
    shorten,
)

KEY = (TaskId("t"), 1)
CAPACITY_BYTES = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({"capacity": str(CAPACITY_BYTES)}, tmp_path / "store") as store:
        yield store


@pytest.fixture
def output(store: FileStore) -> Iterator[ObjectWriter]:
    with store.begin("x") as writer:
        yield writer


class Watched:
    def __init__(self) -> None:
        self.clock = Clock()
        self.outgrown: list[NoSpaceError] = []
        self.watch = GrowthWatch(self.clock, lambda key, error: self.outgrown.append(error))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def write(output: ObjectWriter, size_bytes: int) -> None:
    """Append to the output's path, as a program does."""
    Path(str(output.path)).write_bytes(bytes(size_bytes))


def test_an_output_is_charged_as_it_grows(
    watched: Watched, store: FileStore, output: ObjectWriter
) -> None:
    watched.watch.add(KEY, GrowingFiles((), {0: output}))
    for size_bytes in (4096, CAPACITY_BYTES // 2, CAPACITY_BYTES):
        write(output, size_bytes)
        watched.clock.advance(CHECK_S)
        assert store.usage().reserved_bytes == size_bytes
    assert watched.outgrown == []


def test_an_output_that_outgrows_its_store_is_told_of_once(
    watched: Watched, store: FileStore, output: ObjectWriter
) -> None:
    watched.watch.add(KEY, GrowingFiles((), {0: output}))
    write(output, CAPACITY_BYTES + 1)
    watched.clock.pump([CHECK_S] * 3)
    (error,) = watched.outgrown
    assert (error.wanted_bytes, error.available_bytes) == (CAPACITY_BYTES + 1, CAPACITY_BYTES)


def test_a_program_that_replaced_its_output_is_charged_for_what_is_there_now(
    watched: Watched, store: FileStore, output: ObjectWriter, tmp_path: Path
) -> None:
    (tmp_path / "own").write_bytes(bytes(CAPACITY_BYTES + 1))
    (tmp_path / "own").rename(str(output.path))
    watched.watch.add(KEY, GrowingFiles((), {0: output}))
    watched.clock.advance(CHECK_S)
    assert len(watched.outgrown) == 1


def test_nobody_looks_when_nothing_runs(watched: Watched, output: ObjectWriter) -> None:
    watched.watch.add(KEY, GrowingFiles((), {0: output}))
    watched.watch.remove(KEY)
    write(output, CAPACITY_BYTES + 1)
    watched.clock.advance(CHECK_S)
    assert watched.outgrown == []
    assert watched.clock.getDelayedCalls() == []
    watched.watch.add(KEY, GrowingFiles((), {0: output}))
    watched.watch.close()
    assert watched.clock.getDelayedCalls() == []


def test_an_output_that_cannot_be_looked_at_does_not_end_the_watch(
    watched: Watched, store: FileStore
) -> None:
    closed, good = store.begin("a"), store.begin("b")
    closed.abort()
    watched.watch.add((TaskId("a"), 1), GrowingFiles((), {0: closed}))
    watched.watch.add((TaskId("b"), 1), GrowingFiles((), {0: good}))
    write(good, CAPACITY_BYTES + 1)
    watched.clock.advance(CHECK_S)
    assert len(watched.outgrown) == 1
    good.abort()


def test_a_long_complaint_gives_its_head_back_and_keeps_its_size(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("wb", buffering=0) as program:
        program.write(b"x" * STDERR_MAX_BYTES)
        assert not is_too_long(str(path))
        program.write(b"last words" * 1000)
        assert is_too_long(str(path))
        shorten(str(path))
        assert not is_too_long(str(path))
        assert path.stat().st_size == STDERR_MAX_BYTES + 10_000
        assert path.stat().st_blocks * 512 <= STDERR_LEFT_BYTES + 2 * 4096
        program.write(b"!")
    assert path.stat().st_size == STDERR_MAX_BYTES + 10_001
    with path.open("rb") as file:
        file.seek(-1_000_001, os.SEEK_END)
        assert file.read() == b"x" * 990_000 + b"last words" * 1000 + b"!"


def test_a_complaint_that_is_no_file_is_let_be(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    for name in ("absent", "link"):
        assert not is_too_long(str(tmp_path / name))
        with pytest.raises(OSError, match=name):
            shorten(str(tmp_path / name))


def test_who_wants_the_lines_is_called_at_each_look(watched: Watched) -> None:
    calls: list[int] = []
    watched.watch.add(KEY, GrowingFiles((), {}, lambda: calls.append(1)))
    watched.clock.pump([CHECK_S] * 3)
    assert len(calls) == 3
    watched.watch.remove(KEY)
    watched.clock.pump([CHECK_S] * 3)
    assert len(calls) == 3
