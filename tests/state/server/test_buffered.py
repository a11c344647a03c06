from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ciel.state.bases.rows import pack_row
from ciel.state.errors import BaseUrlError
from ciel.state.finding import open_base
from ciel.state.server.buffered import BufferedRows


class Calls:
    """Runs what the thread of a commit asks for when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def __call__(self, call: Callable[[], object]) -> None:
        self.waiting.append(call)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def open_rows(where: Path) -> tuple[BufferedRows, Calls]:
    calls = Calls()
    return BufferedRows(where, lambda: 1_000_000, calls), calls


def test_rows_agree_with_a_dictionary_across_commits_and_restarts(tmp_path: Path) -> None:
    random, model = Random(1), {}
    rows, calls = open_rows(tmp_path / "base")
    for round_ in range(400):
        writes: dict[bytes, bytes | None] = {}
        for _ in range(random.choice((1, 1, 3, 100))):
            key = b"%d" % random.randrange(300)
            writes[key] = None if random.random() < 0.3 else pack_row(b"%d" % round_, None)
        rows.write(writes)
        rows.flush()
        model.update(writes)
        match random.randrange(12):
            case 0:
                rows.checkpoint()
            case 1:
                calls.run()
            case 2:
                rows.close()
                rows, calls = open_rows(tmp_path / "base")
        first, last = sorted((b"%d" % random.randrange(300), b"%d" % random.randrange(300)))
        expected = [(key, row) for key, row in sorted(model.items()) if row and first <= key < last]
        assert list(rows.layers.range(first, last)) == expected
        key = b"%d" % random.randrange(300)
        assert rows.layers.row(key) == model.get(key)
    assert list(rows.layers.range(b"", None)) == sorted((k, v) for k, v in model.items() if v)
    rows.close()


def test_snapshot_stays_while_rows_change_and_are_committed(tmp_path: Path) -> None:
    rows, calls = open_rows(tmp_path / "base")
    rows.write({b"a": b"\x001", b"b": b"\x001"})
    rows.checkpoint()
    rows.write({b"c": b"\x001"})
    before = rows.snapshot()
    rows.write({b"a": None, b"c": b"\x002", b"d": b"\x002"})
    rows._wait()
    calls.run()
    rows.write({b"e": b"\x003"})
    rows.checkpoint()
    rows._wait()
    assert list(before.range(b"", None)) == [(b"a", b"\x001"), (b"b", b"\x001"), (b"c", b"\x001")]
    assert [key for key, _ in rows.layers.range(b"", None)] == [b"b", b"c", b"d", b"e"]
    before.txn.abort()
    rows.close()


def test_commit_that_was_waited_for_is_not_taken_for_the_next(tmp_path: Path) -> None:
    rows, calls = open_rows(tmp_path / "base")
    rows.write({b"a": b"\0x"})
    rows.checkpoint()
    rows._wait()
    rows.write({b"b": b"\0x"})
    rows.checkpoint()
    thread, _ = rows._thread, rows._committing
    late = calls.waiting.pop(0)  # of the first commit
    late()
    assert rows._committing is not None
    assert [key for key, _ in rows.layers.range(b"", None)] == [b"a", b"b"]
    assert thread is not None
    thread.join()
    calls.run()
    assert rows._committing is None
    assert [key for key, _ in rows.layers.range(b"", None)] == [b"a", b"b"]
    rows.close()


def crashed(where: Path, change: Callable[[Path], object]) -> BufferedRows:
    """Open a copy of a base, as a killed process has left it, with a change to its log."""
    rows, _ = open_rows(where)
    for number in range(5):
        rows.write({b"%d" % number: b"\0x"})
    rows.flush()
    copy = where.with_name("copy")
    shutil.copytree(where, copy)
    rows.close()
    (log,) = copy.glob("*.log")
    change(log)
    return open_rows(copy)[0]


def test_rows_are_there_after_a_crash(tmp_path: Path) -> None:
    rows = crashed(tmp_path / "base", lambda log: None)
    assert [key for key, _ in rows.layers.range(b"", None)] == [b"%d" % n for n in range(5)]
    rows.close()


def cut(cut_bytes: int, log: Path) -> None:
    os.truncate(log, log.stat().st_size - cut_bytes)


def test_incomplete_record_at_the_end_is_left_out(tmp_path: Path) -> None:
    for cut_bytes in (1, 7, 13, 20):
        where = tmp_path / f"{cut_bytes}"
        where.mkdir()
        rows = crashed(where / "base", partial(cut, cut_bytes))
        assert [key for key, _ in rows.layers.range(b"", None)] == [b"%d" % n for n in range(4)]
        rows.write({b"new": b"\0x"})
        rows.close()


def damage(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[40] ^= 1
    log.write_bytes(content)


def test_damage_before_the_end_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BaseUrlError, match="is damaged at byte 16: intact records follow"):
        crashed(tmp_path / "base", damage)


def test_log_of_another_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaseUrlError, match="is not a log of a base"):
        crashed(tmp_path / "base", lambda log: log.write_bytes(b"x" * 100))


def test_records_after_a_lost_one_are_dropped(tmp_path: Path) -> None:
    rows, _ = open_rows(tmp_path / "base")
    rows.write({b"a": b"\x001"})
    rows.checkpoint()
    rows.write({b"b": b"\x001"})
    rows.write({b"c": b"\x001"})
    rows.flush()
    where = tmp_path / "copy"
    where.mkdir()
    for path in sorted((tmp_path / "base").glob("*.log")):
        shutil.copy(path, where)
    rows.close()
    first, *_ = sorted(where.glob("*.log"))
    os.truncate(first, first.stat().st_size - 1)
    rows, _ = open_rows(where)
    assert (list(rows.layers.range(b"", None)), rows.lost) == ([], 2)
    rows.close()


def test_one_process_serves_a_base(tmp_path: Path) -> None:
    rows, _ = open_rows(tmp_path / "base")
    with pytest.raises(BaseUrlError, match="other processes use the base"):
        open_rows(tmp_path / "base")
    with pytest.raises(BaseUrlError, match="a ciel-kv serves the base"):
        open_base(f"lmdb:{tmp_path}/base")
    rows.close()
    with open_base(f"lmdb:{tmp_path}/base"), pytest.raises(BaseUrlError):
        open_rows(tmp_path / "base")
