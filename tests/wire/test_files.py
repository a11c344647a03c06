"""A file told to another process, which may or may not see it."""

import os
from pathlib import Path

import pytest

from ciel.wire.files import file_identity, open_identified


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "a:b"
    found.write_bytes(b"content")
    return found


def test_a_file_is_found_again_even_with_colons_in_its_name(path: Path) -> None:
    fd = open_identified(file_identity(str(path)))
    assert fd is not None
    with os.fdopen(fd, "rb") as file:
        assert file.read() == b"content"


def test_another_file_of_the_same_name_is_not_it(path: Path) -> None:
    identity = file_identity(str(path))
    other = path.with_name("other")
    other.write_bytes(b"content")
    os.rename(other, path)
    assert open_identified(identity) is None


@pytest.mark.parametrize(
    "identity", ["", "nonsense", "1:2:3:relative", "1:2:3:/no/such/file", "::::"]
)
def test_what_names_no_file_here_is_none(identity: str) -> None:
    assert open_identified(identity) is None


def test_neither_a_link_nor_a_pipe_is_followed(path: Path) -> None:
    link, pipe = path.with_name("link"), path.with_name("pipe")
    link.symlink_to(path)
    os.mkfifo(pipe)
    assert open_identified(file_identity(str(link))) is None
    fd = open_identified(file_identity(str(pipe)))  # which must not wait for a writer
    assert fd is not None
    os.close(fd)


def test_a_file_that_loses_its_name_while_it_is_opened_is_not_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may be another object's from then on."""
    identity, fstat = file_identity(str(path)), os.fstat

    def rename(fd: int) -> os.stat_result:
        path.rename(path.with_name("kept"))
        return fstat(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", rename)
        found = open_identified(identity)
    assert found is None


def test_a_file_that_is_gone_has_no_identity(path: Path) -> None:
    path.unlink()
    assert file_identity(str(path)) == ""
