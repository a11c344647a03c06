"""Tests the identity of a file that one process sends to another, which may or may not see the
file.
"""

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


def test_another_file_with_the_same_name_is_not_opened(path: Path) -> None:
    identity = file_identity(str(path))
    other = path.with_name("other")
    other.write_bytes(b"content")
    os.rename(other, path)
    assert open_identified(identity) is None


@pytest.mark.parametrize(
    "identity", ["", "nonsense", "1:2:3:relative", "1:2:3:/no/such/file", "::::"]
)
def test_an_identity_without_a_file_here_opens_nothing(identity: str) -> None:
    assert open_identified(identity) is None


def test_a_link_is_not_followed_and_a_pipe_is_opened_without_waiting(path: Path) -> None:
    link, pipe = path.with_name("link"), path.with_name("pipe")
    link.symlink_to(path)
    os.mkfifo(pipe)
    assert open_identified(file_identity(str(link))) is None
    fd = open_identified(file_identity(str(pipe)))  # opening it must not wait for a writer
    assert fd is not None
    os.close(fd)


def test_a_file_that_is_renamed_while_it_is_opened_is_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may belong to another object from then on."""
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
