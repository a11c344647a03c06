"""Tests that a worker keeps the files of a failed attempt, up to maximum sizes."""

import re
from pathlib import Path

import pytest

from ciel.execution.kept import KeptAttempts
from ciel.worker.attempts import kept_files
from ciel.worker.attempts.kept_files import keep_files
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.limits.growth import STDERR_LEFT_BYTES, STDERR_MAX_BYTES, shorten

MIB = 1 << 20


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    (tmp_path / "scratch").mkdir()
    return Scratch(tmp_path, "t")


@pytest.fixture
def kept(tmp_path: Path) -> KeptAttempts:
    return KeptAttempts(tmp_path / "kept")


def test_output_and_complaint_lie_beside_the_directory(
    scratch: Scratch, kept: KeptAttempts, tmp_path: Path
) -> None:
    Path(scratch.stderr_path).write_bytes(b"why")
    (tmp_path / "partial").write_bytes(b"half")
    told = keep_files(kept, "t.1", scratch, str(tmp_path / "partial"))
    place = kept.path / "t.1"
    assert told == f"its files are kept in {place}"
    assert sorted(path.name for path in place.iterdir()) == ["scratch", "stderr", "stdout"]
    assert (place / "stdout").read_bytes() == b"half"
    assert (place / "stdout").stat().st_ino == (tmp_path / "partial").stat().st_ino
    assert (place / "stderr").read_bytes() == b"why"


def test_of_a_long_output_the_beginning_is_kept(
    scratch: Scratch, kept: KeptAttempts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "STDOUT_MAX_BYTES", 3 * MIB + 1)
    content = bytes(range(256)) * (MIB // 64)
    (tmp_path / "partial").write_bytes(content)
    keep_files(kept, "t.1", scratch, str(tmp_path / "partial"))
    place = kept.path / "t.1"
    names = sorted(path.name for path in place.iterdir())
    assert names == ["scratch", "stderr", "stdout.beginning"]
    assert (place / "stdout.beginning").read_bytes() == content[: 3 * MIB + 1]
    assert (tmp_path / "partial").read_bytes() == content


@pytest.mark.parametrize("kind", ["absent", "link", "directory"])
def test_an_output_that_is_no_file_is_left_out(
    scratch: Scratch, kept: KeptAttempts, tmp_path: Path, kind: str
) -> None:
    if kind == "link":
        (tmp_path / "partial").symlink_to("/etc/passwd")
    elif kind == "directory":
        (tmp_path / "partial").mkdir()
    keep_files(kept, "t.1", scratch, str(tmp_path / "partial"))
    assert sorted(path.name for path in (kept.path / "t.1").iterdir()) == ["scratch", "stderr"]


def test_a_long_complaint_is_kept_as_its_end_without_holes(
    scratch: Scratch, kept: KeptAttempts
) -> None:
    size_bytes = STDERR_MAX_BYTES + 5
    end = bytes(range(1, 256)) * (STDERR_LEFT_BYTES // 255)
    with open(scratch.stderr_path, "wb") as file:
        file.seek(size_bytes - len(end))
        file.write(end)
    shorten(scratch.stderr_path)
    keep_files(kept, "t.1", scratch, None)
    kept_stderr = (kept.path / "t.1" / "stderr").read_bytes()
    assert kept_stderr.startswith(b"(%d bytes omitted)\n" % (size_bytes - STDERR_LEFT_BYTES))
    assert kept_stderr.endswith(end)
    assert len(kept_stderr) < STDERR_LEFT_BYTES + 100


def test_what_finds_no_room_is_said_to_be_gone(scratch: Scratch, tmp_path: Path) -> None:
    kept = KeptAttempts(tmp_path / "kept", bytes_max=0)
    Path(scratch.path, "left").write_bytes(b"left")
    told = re.sub("[1-9][0-9]*", "N", keep_files(kept, "t.1", scratch, None))
    limit = "the limit for all retained files is 0"
    assert told == f"its files were not retained: they take N bytes; {limit}"
    assert list(kept.path.iterdir()) == []
