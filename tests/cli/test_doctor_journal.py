"""Tests what `ciel doctor` finds wrong with journals in real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ciel.cli.doctor import journal as checks
from ciel.cli.doctor.findings import FAULT, NOTE, OK, Finding
from ciel.cli.doctor.journal import check_journal, journal_here
from ciel.core.events import MasterStarted
from ciel.journal.directory import lock_directory
from ciel.journal.groups import HEADER, encode_records, seal


def group(epoch: int) -> bytes:
    return seal(encode_records([MasterStarted(epoch, "1")]), 1000.0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of two files, with three records."""
    directory = tmp_path / "journal"
    directory.mkdir(mode=0o700)
    (directory / "00000001.journal").write_bytes(HEADER + group(1) + group(2))
    (directory / "00000002.journal").write_bytes(HEADER + group(3))
    return directory


def only(directory: Path) -> Finding:
    (finding,) = check_journal(directory)
    return finding


def test_a_good_journal(directory: Path) -> None:
    finding = only(directory)
    assert finding.state == OK
    assert "3 records" in finding.found
    assert finding.found.endswith("not in use")


def test_a_journal_in_use(directory: Path) -> None:
    fd = lock_directory(directory)
    try:
        last = directory / "00000002.journal"
        last.write_bytes(last.read_bytes() + group(4)[:-1])  # it is just being written
        finding = only(directory)
    finally:
        os.close(fd)
    assert (finding.state, finding.found.endswith(f"in use by process {os.getpid()}")) == (OK, True)


def test_a_journal_that_a_crash_has_cut_off(directory: Path) -> None:
    last = directory / "00000002.journal"
    last.write_bytes(last.read_bytes()[:-1])
    cut, good = check_journal(directory)
    assert (cut.state, good.state) == (NOTE, OK)
    assert "is cut off at byte 16: the last group is cut off" in cut.found


@pytest.mark.parametrize("name", ["00000001.journal", "00000002.journal"])
def test_a_damaged_journal(directory: Path, name: str) -> None:
    path = directory / name
    path.write_bytes(HEADER + group(1)[:-1] + b"?" + group(2))
    finding = only(directory)
    assert finding.state == FAULT
    assert f"{path}: at byte 16" in finding.found
    assert "restore the file from a copy" in finding.advice


def test_a_journal_of_another_version(directory: Path) -> None:
    (directory / "00000002.journal").write_bytes(HEADER.replace(b"1", b"2") + group(1))
    finding = only(directory)
    assert finding.state == FAULT
    assert "use the version of ciel that has written it" in finding.advice


def test_a_missing_file(directory: Path) -> None:
    (directory / "00000001.journal").unlink()
    finding = only(directory)
    assert (finding.state, "00000001.journal is missing" in finding.found) == (FAULT, True)


def test_a_journal_that_others_can_read(directory: Path) -> None:
    directory.chmod(0o755)
    finding, _ = check_journal(directory)
    assert (finding.state, finding.advice) == (FAULT, f"chmod 700 {directory}")


def test_a_journal_without_space(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FREE_MIN_BYTES", 1 << 60)
    finding, _ = check_journal(directory)
    assert (finding.state, "are free for" in finding.found) == (FAULT, True)


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    finding = only(tmp_path / "none")
    assert (finding.state, "No such file or directory" in finding.found) == (FAULT, True)


def test_only_a_cluster_with_a_journal_has_one(tmp_path: Path) -> None:
    assert journal_here({"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}) is None
