from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from ciel.state.bases.rows import KEPT, pack_row
from ciel.state.batches import Put
from ciel.state.errors import BaseFullError, BaseUrlError, KvError, LimitError
from ciel.state.finding import open_base
from ciel.state.server import buffered
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.layers import Size, measured
from ciel.state.server.log import CLEARED, Log


class Calls:
    """Runs what the thread of a commit asks for when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def __call__(self, call: Callable[[], object]) -> None:
        self.waiting.append(call)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def open_rows(where: Path, **options: Any) -> tuple[BufferedRows, Calls]:
    calls = Calls()
    return BufferedRows(where, lambda: 1_000_000, calls, **options), calls


def end_commit(rows: BufferedRows, calls: Calls) -> None:
    """Wait for the thread of a commit, and go on as the daemon does."""
    assert rows._committer is not None
    rows._committer.join()
    calls.run()


def random_writes(random: Random, content: bytes) -> dict[bytes, bytes | None]:
    writes: dict[bytes, bytes | None] = {CLEARED: None} if random.random() < 0.02 else {}
    for _ in range(random.choice((1, 1, 3, 100))):
        key = b"%d" % random.randrange(300)
        key = KEPT + key if random.random() < 0.1 else key
        end_us = 5_000_000 if random.random() < 0.2 else None
        writes[key] = None if random.random() < 0.3 else pack_row(content, end_us)
    return writes


def apply(model: dict[bytes, bytes | None], writes: dict[bytes, bytes | None]) -> None:
    if CLEARED in writes:
        for key in [key for key in model if key < KEPT]:
            del model[key]
    model.update(writes)


def test_rows_agree_with_a_dictionary_across_commits_and_restarts(tmp_path: Path) -> None:
    random = Random(1)
    model: dict[bytes, bytes | None] = {}
    rows, calls = open_rows(tmp_path / "base")
    for round_ in range(600):
        writes = random_writes(random, b"%d" % round_)
        rows.write(writes)
        rows.flush()
        apply(model, writes)
        assert rows.layers.size == measured(model.items())
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
    assert rows.layers.size == measured(rows.layers.range(b"", None))
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
    rows.drop(before)
    rows.close()


def test_commit_that_was_waited_for_is_not_taken_for_the_next(tmp_path: Path) -> None:
    rows, calls = open_rows(tmp_path / "base")
    rows.write({b"a": b"\0x"})
    rows.checkpoint()
    rows._wait()
    rows.write({b"b": b"\0x"})
    rows.checkpoint()
    thread, _ = rows._committer, rows._committing
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


@pytest.mark.requirement("KVB-2")
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


# --- the size -------------------------------------------------------------------------------------


def test_size_is_known_after_a_crash_and_after_an_embedded_client(tmp_path: Path) -> None:
    rows = crashed(tmp_path / "base", lambda log: None)
    assert rows.layers.size == measured((b"%d" % n, b"\0x") for n in range(5))
    assert rows.layers.size.rows == 5
    rows.close()
    with open_base(f"lmdb:{tmp_path}/copy") as base:
        base.apply([Put(b"ends", b"1", 3600.0), Put(b"0", b"longer")])
    rows, _ = open_rows(tmp_path / "copy")
    assert rows.layers.size == measured(rows.layers.range(b"", None))
    assert rows.layers.size[:2] == (6, 1)
    rows.close()


def test_size_is_not_counted_again_when_a_base_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = open_rows(tmp_path / "base")
    rows.write({b"%d" % number: b"\0x" for number in range(100)})
    size = rows.layers.size
    rows.close()

    def count_all(_: object) -> Size:
        raise AssertionError("all rows are counted")

    monkeypatch.setattr(buffered, "measured", count_all)
    rows, _ = open_rows(tmp_path / "base")
    assert rows.layers.size == size
    rows.close()


def test_cleared_base_is_empty_after_a_crash(tmp_path: Path) -> None:
    where = tmp_path / "base"
    rows, calls = open_rows(where)
    rows.write({b"a": b"\x001", b"\xffe1": b"\0e", b"\xffrequest/c": b"\0r"})
    rows.checkpoint()
    end_commit(rows, calls)
    rows.write({CLEARED: None, b"b": b"\x002"})
    rows.flush()
    shutil.copytree(where, tmp_path / "copy")
    rows.close()
    for path in (where, tmp_path / "copy"):
        rows, _ = open_rows(path)
        assert dict(rows.layers.range(b"", None)) == {b"b": b"\x002", b"\xffrequest/c": b"\0r"}
        assert rows.layers.size.rows == 1
        rows.close()


# --- commits that fail ----------------------------------------------------------------------------


def fails(reason: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise reason

    return fail


def test_nothing_is_lost_when_a_commit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, calls = open_rows(tmp_path / "base")
    reasons: list[str] = []
    rows.on_failed = reasons.append
    rows.write({b"a": b"\x001"})
    with monkeypatch.context() as patch:
        patch.setattr(rows, "_commit", fails(KvError("the disk is broken")))
        rows.checkpoint()
        rows.write({b"b": b"\x002"})
        end_commit(rows, calls)
        assert reasons == ["the disk is broken"]
        assert rows.layers.row(b"a") == b"\x001"
    rows.close()  # as the daemon does when it ends
    rows, _ = open_rows(tmp_path / "base")
    assert dict(rows.layers.range(b"", None)) == {b"a": b"\x001", b"b": b"\x002"}
    rows.close()


def test_full_base_goes_on_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of LMDB cannot grow any more."""
    monkeypatch.setattr(buffered, "FILE_SPARE_BYTES", 1 << 20)
    monkeypatch.setattr(buffered, "RETRY_S", 0.0)
    rows, calls = open_rows(tmp_path / "base", capacity_bytes=1 << 18)
    model: dict[bytes, bytes | None] = {}
    for number in range(40):
        model[b"%d" % number] = b"\0" + bytes(100_000)
        rows.write({b"%d" % number: model[b"%d" % number]})
    rows.checkpoint()
    rows.write({b"late": b"\0x"})
    end_commit(rows, calls)
    assert rows.is_stuck
    with pytest.raises(BaseFullError, match="is full: its changes could not be committed"):
        rows.check_room(rows.layers.size)
    model[b"late"] = b"\0x"
    assert dict(rows.layers.range(b"", None)) == model
    snapshot = rows.snapshot()
    rows.write({b"0": None})
    rows.checkpoint()  # again no room
    end_commit(rows, calls)
    assert rows.is_stuck
    assert dict(snapshot.range(b"", None)) == model
    rows.drop(snapshot)
    rows.write({b"%d" % number: None for number in range(30)})
    for number in range(30):
        model.pop(b"%d" % number)
    rows.retry()
    end_commit(rows, calls)
    assert not rows.is_stuck
    assert dict(rows.layers.range(b"", None)) == model
    assert len(list((tmp_path / "base").glob("*.log"))) == 1
    rows.close()
    rows, _ = open_rows(tmp_path / "base")
    assert dict(rows.layers.range(b"", None)) == model
    rows.close()


def test_full_base_opens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(buffered, "FILE_SPARE_BYTES", 1 << 20)
        rows, calls = open_rows(tmp_path / "base", capacity_bytes=1 << 18)
        rows.write({b"%d" % number: b"\0" + bytes(100_000) for number in range(40)})
        rows.checkpoint()
        end_commit(rows, calls)
        rows.write({b"0": None})
        with pytest.raises(BaseFullError):
            rows.close()
    rows, _ = open_rows(tmp_path / "base", capacity_bytes=1 << 18)
    assert [key for key, _ in rows.layers.range(b"", None)] == sorted(
        b"%d" % n for n in range(1, 40)
    )
    rows.close()


def test_commit_that_found_no_room_is_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, calls = open_rows(tmp_path / "base")
    monkeypatch.setattr(rows, "_commit", fails(BaseFullError("the base", "x")))
    rows.write({b"a": b"\x001"})
    rows.checkpoint()
    end_commit(rows, calls)
    rows.retry()
    assert not rows.is_committing
    monkeypatch.undo()
    rows.close()


def test_base_refuses_to_grow_beyond_its_capacity(tmp_path: Path) -> None:
    rows, _ = open_rows(tmp_path / "base", capacity_bytes=1000)
    rows.check_room(rows.layers.size_with({b"a": b"\0" + bytes(900)}, {}))
    with pytest.raises(BaseFullError, match=r"its rows have 0 bytes, and the limit is 1,000"):
        rows.check_room(rows.layers.size_with({b"a": b"\0" + bytes(1000)}, {}))
    rows.close()


def test_log_without_records_stays_when_a_commit_begins(tmp_path: Path) -> None:
    rows, calls = open_rows(tmp_path / "base")
    for key in (b"a", b"b"):
        rows.write({key: b"\0x"})
        rows.checkpoint()
        end_commit(rows, calls)
        rows.checkpoint()  # nothing was written
        end_commit(rows, calls)
    rows.write({b"c": b"\0x"})
    rows.flush()
    shutil.copytree(tmp_path / "base", tmp_path / "copy")
    rows.close()
    rows, _ = open_rows(tmp_path / "copy")
    assert [key for key, _ in rows.layers.range(b"", None)] == [b"a", b"b", b"c"]
    rows.close()


def test_too_many_snapshots_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffered, "SNAPSHOTS_MAX", 3)
    rows, _ = open_rows(tmp_path / "base")
    snapshots = [rows.snapshot() for _ in range(3)]
    with pytest.raises(LimitError, match="at most 3 snapshots"):
        rows.snapshot()
    rows.drop(snapshots.pop())
    snapshots.append(rows.snapshot())
    assert rows.snapshots == 3
    for snapshot in snapshots:
        rows.drop(snapshot)
    rows.close()


# --- rows that have ended -------------------------------------------------------------------------


def test_outdated_ends_do_not_hold_up_others(tmp_path: Path) -> None:
    """Before a commit, LMDB's list has the ends of rows that were removed or renewed meanwhile."""
    rows, calls = open_rows(tmp_path / "base")
    keys = [b"%03d" % number for number in range(300)]
    rows.write({key: pack_row(b"x", 1 + place) for place, key in enumerate(keys)})
    rows.checkpoint()
    end_commit(rows, calls)
    rows.write({key: None if int(key) % 2 else pack_row(b"y", 9_000_000) for key in keys[:250]})
    found = [rows.ended(100) for _ in range(4)]
    assert [key for part in found for key in part] == keys[250:]
    rows.close()


def test_rows_that_ended_earlier_are_found_after_a_commit(tmp_path: Path) -> None:
    rows, calls = open_rows(tmp_path / "base")
    for key, end_us in ((b"late", 500_000), (b"early", 5)):
        rows.write({key: pack_row(b"x", end_us)})
        rows.checkpoint()
        end_commit(rows, calls)
        found = rows.ended(100)
        assert found == [key]
        rows.write(dict.fromkeys(found))
    rows.close()


def test_all_ended_rows_are_removed_without_a_commit(tmp_path: Path) -> None:
    rows, calls = open_rows(tmp_path / "base")
    rows.write({b"%03d" % number: pack_row(b"x", 1) for number in range(500)})
    rows.checkpoint()
    end_commit(rows, calls)
    for _ in range(5):
        rows.write(dict.fromkeys(rows.ended(100)))
    assert list(rows.layers.range(b"", None)) == []
    rows.close()


def test_ends_of_committed_rows_take_no_memory(tmp_path: Path) -> None:
    rows, calls = open_rows(tmp_path / "base")
    for number in range(1000):  # a client's row of results gets another end with each batch
        rows.write({b"\xffrequest/c": pack_row(b"[1]", 3_600_000_000 + number)})
    rows.checkpoint()
    end_commit(rows, calls)
    assert sum(len(layer.ends) for layer in rows.layers.layers) == 0
    rows.close()


# --- durability -----------------------------------------------------------------------------------


def test_sync_misses_no_log_however_a_commit_falls_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of `sync` is interrupted after each of its instructions: there the daemon begins a
    commit, which ends the log with the record that is to become durable.
    """
    synced: list[Path] = []
    sync = Log.sync

    def note_and_sync(log: Log) -> None:
        synced.append(log.path)
        sync(log)

    monkeypatch.setattr(Log, "sync", note_and_sync)
    for interrupted in count(1):
        rows, calls = open_rows(tmp_path / f"{interrupted}")
        rows.write({b"a": b"\x001"})
        rows.flush()
        log = rows._log.path
        synced.clear()
        instructions = count(1)

        def trace(
            frame: FrameType, event: str, _: object, rows: BufferedRows = rows,
            instructions: Any = instructions, interrupted: int = interrupted,
        ) -> Any:  # fmt: skip
            if frame.f_code is not BufferedRows.sync.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(instructions) == interrupted:
                rows.checkpoint()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            rows.sync()
        finally:
            sys.settrace(before)
        assert log in synced, f"missed after instruction {interrupted}"
        was_interrupted = rows.is_committing
        if was_interrupted:
            end_commit(rows, calls)
        rows.close()
        if not was_interrupted:  # the function has fewer instructions
            assert interrupted > 10
            return
