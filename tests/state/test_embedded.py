from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ciel.state.bases import lmdb_tables
from ciel.state.bases.embedded import OFF, EmbeddedBase
from ciel.state.bases.lmdb_tables import Tables
from ciel.state.batches import Put
from ciel.state.errors import KvError, LimitError

DIES_READING = """
import os, signal, sys
from pathlib import Path
from ciel.state.bases.embedded import OFF, EmbeddedBase
base = EmbeddedBase(Path(sys.argv[1]), OFF)
moments = [base.snapshot() for _ in range(int(sys.argv[2]))]
os.kill(os.getpid(), signal.SIGKILL)
"""


def die_reading(where: Path, readers: int) -> None:
    subprocess.run([sys.executable, "-c", DIES_READING, str(where), str(readers)], check=False)


def test_killed_reader_is_forgotten_when_the_base_is_opened(tmp_path: Path) -> None:
    die_reading(tmp_path, 3)
    tables = Tables(tmp_path, is_synced=True)
    assert tables.env.reader_check() == 0
    assert str(tables.env.readers()).count("\n") <= 1  # a heading, or that there is none
    tables.close()


def test_killed_readers_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_tables, "READERS_MAX", 126)  # the smallest number of LMDB
    with EmbeddedBase(tmp_path, OFF) as base:
        base.apply([Put(b"a", b"1")])
        die_reading(tmp_path, 126)
        moments = [base.snapshot() for _ in range(50)]
        assert all(moment.get(b"a") == b"1" for moment in moments)
        for moment in moments:
            moment.close()


def test_too_many_readers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_tables, "READERS_MAX", 126)
    with EmbeddedBase(tmp_path, OFF) as base:
        moments = [base.snapshot() for _ in range(125)]
        with pytest.raises(LimitError, match="has 126 readers already"):
            moments += [base.snapshot() for _ in range(2)]
        for moment in moments:
            moment.close()
        assert base.get(b"a") is None
        with pytest.raises(KvError, match="the snapshot is closed"):
            moments[0].get(b"a")
