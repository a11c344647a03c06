import os
from pathlib import Path

import pytest

from ciel.execution.report import STDERR_TAIL_BYTES, STDERR_TAIL_LINES
from ciel.worker.attempts import scratch as module
from ciel.worker.attempts.scratch import Scratch, ScratchPool


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool" / "scratch").mkdir(parents=True)
    return tmp_path / "spool"


def left(spool: Path) -> list[str]:
    return sorted(path.name for path in (spool / "scratch").iterdir())


def test_the_directory_is_there_private_and_empty(spool: Path) -> None:
    scratch = Scratch(spool, "t.1")
    assert Path(scratch.path).stat().st_mode & 0o777 == 0o700
    assert list(Path(scratch.path).iterdir()) == []
    assert scratch.is_clean()


def test_a_name_that_is_taken_is_refused(spool: Path) -> None:
    Scratch(spool, "t.1")
    with pytest.raises(FileExistsError):
        Scratch(spool, "t.1")


def test_inputs_get_files_of_their_own_outside_the_programs_directory(spool: Path) -> None:
    scratch = Scratch(spool, "t.1")
    paths = [Path(scratch.write_input(content)) for content in (b"one", b"two", b"")]
    assert [path.read_bytes() for path in paths] == [b"one", b"two", b""]
    assert list(Path(scratch.path).iterdir()) == []
    assert not scratch.is_clean()


def test_files_lie_where_they_are_named(spool: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    scratch = Scratch(spool, "t.1")
    scratch.place("a/b/c.txt", str(source))
    assert Path(scratch.path, "a/b/c.txt").read_bytes() == b"content"


def test_what_is_run_is_a_copy(spool: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"#!/bin/sh\n")
    source.chmod(0o400)
    path = Path(Scratch(spool, "t.1").copy_executable(str(source)))
    assert path.read_bytes() == b"#!/bin/sh\n"
    assert path.stat().st_mode & 0o777 == 0o700
    assert source.stat().st_mode & 0o777 == 0o400


def test_a_short_standard_error_is_told_whole(spool: Path) -> None:
    scratch = Scratch(spool, "t.1")
    assert (scratch.stderr_size(), scratch.stderr_tail()) == (0, "")
    scratch.begin()
    Path(scratch.stderr_path).write_bytes(b"why\n\xff\n")
    assert (scratch.stderr_size(), scratch.stderr_tail()) == (6, "why\n\ufffd")


def test_of_a_long_standard_error_the_end_is_told(spool: Path) -> None:
    scratch = Scratch(spool, "t.1")
    lines = b"".join(b"line %d\n" % number for number in range(5000))
    Path(scratch.stderr_path).write_bytes(lines)
    first, *rest = scratch.stderr_tail().splitlines()
    text = "\n".join(rest) + "\n"
    assert first == f"({len(lines) - len(text)} bytes omitted)"
    assert text.startswith("line ")
    assert lines.endswith(text.encode())
    assert len(rest) == STDERR_TAIL_LINES
    assert len(text) <= STDERR_TAIL_BYTES


def test_remove_takes_all_of_it_whatever_the_program_did(spool: Path) -> None:
    scratch = Scratch(spool, "t.1")
    scratch.write_input(b"one")
    Path(scratch.stderr_path).write_bytes(b"why")
    Path(scratch.path, "deep/er").mkdir(parents=True)
    Path(scratch.path, "deep/er/link").symlink_to("/etc")
    scratch.remove()
    assert left(spool) == []
    assert Path("/etc").exists()
    scratch.remove()


def test_keep_moves_what_is_worth_looking_at(spool: Path, tmp_path: Path) -> None:
    scratch = Scratch(spool, "t.1")
    scratch.write_input(b"one")
    Path(scratch.stderr_path).write_bytes(b"why")
    Path(scratch.path, "left.txt").write_bytes(b"left")
    kept = tmp_path / "kept" / "t.1"
    scratch.keep(kept)
    found = {
        str(path.relative_to(kept)): path.read_bytes() for path in kept.rglob("*") if path.is_file()
    }
    assert found == {"stderr": b"why", "scratch/left.txt": b"left"}
    assert left(spool) == []


def test_there_is_room_for_the_end_of_standard_error_before_it_is_written(spool: Path) -> None:
    """So a program that fills the disk can say so."""
    scratch = Scratch(spool, "t.1")
    status = os.stat(scratch.stderr_path)
    assert (status.st_size, status.st_blocks * 512) == (0, STDERR_TAIL_BYTES)
    assert scratch.is_untouched()


def test_keep_without_a_complaint_keeps_the_directory(spool: Path, tmp_path: Path) -> None:
    Scratch(spool, "t.1").keep(tmp_path / "t.1")
    assert sorted(path.name for path in (tmp_path / "t.1").iterdir()) == ["scratch", "stderr"]
    assert left(spool) == []


def test_an_untouched_directory_is_used_again(spool: Path) -> None:
    pool = ScratchPool(spool)
    first = pool.take()
    Path(first.stderr_path).touch()
    assert pool.take_back(first)
    assert pool.take() is first
    assert pool.take() is not first


def test_a_directory_that_bears_traces_is_not_used_again(spool: Path) -> None:
    pool = ScratchPool(spool)
    with_file, with_words, with_input, opened = (pool.take() for _ in range(4))
    Path(with_file.path, "left").touch()
    Path(with_words.stderr_path).write_text("oops")
    with_input.write_input(b"")
    Path(opened.path).chmod(0o777)
    for scratch in (with_file, with_words, with_input, opened):
        assert not pool.take_back(scratch)


def test_a_closed_pool_leaves_nothing(spool: Path) -> None:
    pool = ScratchPool(spool)
    assert pool.take_back(pool.take())
    pool.close()
    assert left(spool) == []


def test_lines_are_told_once_each_and_only_whole_ones_while_a_program_runs(spool: Path) -> None:
    scratch = Scratch(spool, "t.1")
    assert scratch.lines_from(0) == ("", 0)
    with open(scratch.stderr_path, "wb", buffering=0) as program:
        program.write(b"one\n\ntw")
        assert scratch.lines_from(0) == ("one\n\n", 5)
        assert scratch.lines_from(5) == ("", 5)
        program.write(b"o \x1b[1mbold\x1b[0m \x1b]8;;\n\nrest")
        assert scratch.lines_from(5) == ("two bold \ufffd]8;;\n\n", 29)
    assert scratch.lines_from(29, to_the_end=True) == ("rest", 33)


def test_of_very_many_lines_the_last_are_told(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEHIND_MAX_BYTES", 100)
    monkeypatch.setattr(module, "PIECE_BYTES", 50)
    scratch = Scratch(spool, "t.1")
    lines = [b"line %d\n" % number for number in range(10, 99)]
    Path(scratch.stderr_path).write_bytes(b"".join(lines))
    text, end = scratch.lines_from(16)
    assert (text, end) == ("(600 bytes omitted)\n" + b"".join(lines[-12:-7]).decode(), 8 * 82)
    told: list[str] = []
    assert scratch.log_lines(end, told.append, to_the_end=True) == 8 * 89
    assert "".join(told) == b"".join(lines[-7:]).decode()


def test_a_line_that_has_no_end_is_broken_up(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    scratch = Scratch(spool, "t.1")
    Path(scratch.stderr_path).write_bytes(b"x" * 75)
    told: list[str] = []
    assert scratch.log_lines(0, told.append) == 10 * module.PIECES_PER_CHECK
    assert scratch.log_lines(40, told.append) == 70
    assert scratch.log_lines(70, told.append) == 70  # more of the line may follow
    assert scratch.log_lines(70, told.append, to_the_end=True) == 75
    assert told == ["x" * 10] * 7 + ["x" * 5]


def test_what_is_no_file_has_no_lines(spool: Path) -> None:
    scratch = Scratch(spool, "t.1")
    os.unlink(scratch.stderr_path)
    os.mkfifo(scratch.stderr_path)
    assert scratch.lines_from(0, to_the_end=True) == ("", 0)
