"""The mount where programs map files, copy whole trees with their attributes, or cut the image."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.testing.shm_mounts import can_mount, mounted
from ciel.testing.shm_tools import Image, fresh_image

BLOCK = 4096
SIZE = 2 * BLOCK
WAIT_S = 20.0


@pytest.fixture
def image() -> Iterator[Image]:
    if not can_mount():
        pytest.xfail("no FUSE here; tests/scc/test_fuse.py shows that this is said clearly")
    with fresh_image("--blocks=512", "--block-size=4KiB") as image:
        yield image


def make_mapped(path: Path, mode: int = 0o644) -> mmap.mmap:
    """Make a file, and store into it through a mapping that stays."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    os.ftruncate(fd, SIZE)
    memory = mmap.mmap(fd, SIZE)
    os.close(fd)
    memory[:] = b"A" * SIZE
    return memory


@pytest.mark.parametrize("options", [(), ("--writeback",)])
def test_what_was_stored_into_a_mapping_is_committed(
    image: Image, tmp_path: Path, options: tuple[str, ...]
) -> None:
    with mounted(image, tmp_path, *options):
        for n in range(20):
            memory = make_mapped(tmp_path / f"{n}")
            (tmp_path / f"{n}").chmod(0o444)
            assert image.do("shmst", f"{n}", "-") == b"A" * SIZE
            memory.close()


def test_a_file_committed_by_closing_has_what_was_mapped(image: Image, tmp_path: Path) -> None:
    with mounted(image, tmp_path):
        make_mapped(tmp_path / "a", 0o444).close()
    assert image.names()["a"]["committed"]
    assert image.do("shmst", "a", "-") == b"A" * SIZE


def test_a_mapping_that_outlives_the_commit_changes_nothing(image: Image, tmp_path: Path) -> None:
    with mounted(image, tmp_path):
        memory = make_mapped(tmp_path / "a")
        (tmp_path / "a").chmod(0o444)
        memory[:1] = b"B"
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EROFS))):
            memory.flush()
        memory.close()
        # the kernel drops the changed bytes a moment after it has answered the flush
        deadline = time.monotonic() + WAIT_S
        while (tmp_path / "a").read_bytes() != b"A" * SIZE:
            assert time.monotonic() < deadline
            time.sleep(0.002)
    assert image.do("shmst", "a", "-") == b"A" * SIZE


@pytest.mark.parametrize("tool", ["rsync", "tar", "cp"])
def test_a_tree_is_copied_with_the_attributes_of_its_root(
    image: Image, tmp_path: Path, tool: str
) -> None:
    source, place = tmp_path / "source", tmp_path / "mount"
    source.mkdir()
    place.mkdir()
    for name, mode in (("open", 0o644), ("finished", 0o444)):
        (source / name).write_bytes(name.encode() * 1000)
        (source / name).chmod(mode)
    source.chmod(0o750)
    os.utime(source, (1_000_000_007, 1_000_000_007))
    archive = tmp_path / "archive"
    subprocess.run(["tar", "-C", source, "-cf", archive, "."], check=True)
    assert shutil.which(tool), f"install {tool} (apt install {tool})"
    commands: dict[str, list[str | Path]] = {
        "rsync": ["rsync", "-a", f"{source}/", f"{place}/"],
        "tar": ["tar", "-C", place, "-xpf", archive],
        "cp": ["cp", "-a", f"{source}/.", f"{place}/"],
    }
    with mounted(image, place):
        subprocess.run(commands[tool], check=True)
        status = place.stat()
        assert (status.st_mode & 0o7777, int(status.st_mtime)) == (0o750, 1_000_000_007)
        for name in ("open", "finished"):
            assert (place / name).read_bytes() == (source / name).read_bytes()
    assert image.names()["finished"]["committed"]
    assert not image.names()["open"]["committed"]


def refused_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        call()


def refused_with_eio(call: Callable[[], object]) -> None:
    refused_with(errno.EIO, call)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def places(image: Image, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two mounts of one image, in which a file lies that nobody has open."""
    places = tmp_path / "one", tmp_path / "other"
    for place in places:
        place.mkdir()
    with mounted(image, places[0]), mounted(image, places[1]):
        (places[0] / "a").write_bytes(b"content")
        wait_until(lambda: not image.names()["a"]["writing"])  # the kernel closes by and by
        yield places
    image.assert_clean()


def test_a_reader_in_another_mount_keeps_nobody_from_committing(
    image: Image, places: tuple[Path, Path]
) -> None:
    one, other = places
    with open(other / "a", "rb") as reader, open(one / "a", "rb") as beside:
        (one / "a").chmod(0o444)
        assert image.names()["a"]["committed"]
        assert (reader.read(), beside.read()) == (b"content", b"content")
        assert image.do("shmst", "a", "-") == b"content"
        refused_with(errno.EROFS, lambda: (other / "a").write_bytes(b"more"))


def test_the_last_reader_of_a_removed_file_reads_it_to_its_end(
    image: Image, places: tuple[Path, Path]
) -> None:
    one, other = places
    with open(other / "a", "rb", buffering=0) as reader:
        (one / "a").unlink()
        assert reader.read() == b"content"
    wait_until(lambda: image.usage()["free_inodes"] == image.usage()["inodes"])


def test_who_writes_in_another_mount_keeps_others_away_until_it_closes(
    image: Image, places: tuple[Path, Path]
) -> None:
    one, other = places
    with open(other / "a", "rb") as reader:
        with open(other / "a", "r+b") as writer:
            refused_with(errno.ETXTBSY, lambda: (one / "a").chmod(0o444))
            refused_with(errno.ETXTBSY, lambda: (one / "a").read_bytes())
            writer.write(b"CONTENT")
        wait_until(lambda: not image.names()["a"]["writing"])
        assert (one / "a").read_bytes() == b"CONTENT"
        refused_with(errno.ETXTBSY, lambda: os.open(one / "a", os.O_WRONLY))  # while others read
        refused_with(errno.ETXTBSY, lambda: os.truncate(one / "a", 0))
        (one / "a").chmod(0o444)
        assert reader.read() == b"CONTENT"


def test_a_file_that_is_made_to_be_read_has_no_writer(
    image: Image, places: tuple[Path, Path]
) -> None:
    one, other = places
    for name, flags in (("new", os.O_CREAT), ("a", os.O_TRUNC)):
        fd = os.open(other / name, os.O_RDONLY | flags, 0o644)
        (one / name).chmod(0o444)
        os.close(fd)
        assert image.names()[name]["committed"]
        assert (one / name).read_bytes() == b""


@pytest.mark.parametrize("part", ["control", "data"])
def test_a_mount_of_a_truncated_image_answers_with_errors(
    image: Image, tmp_path: Path, part: str
) -> None:
    with mounted(image, tmp_path) as process:
        (tmp_path / "a").write_bytes(b"x" * 10 * BLOCK)
        (tmp_path / "a").chmod(0o444)
        os.truncate(image.control if part == "control" else image.data, BLOCK)
        refused_with_eio(lambda: (tmp_path / "b").write_bytes(b"x" * SIZE))
        refused_with_eio((tmp_path / "a").read_bytes)
        refused_with_eio(lambda: os.listdir(tmp_path))
        assert process.poll() is None
    assert process.returncode == 0


def test_who_reads_a_truncated_image_through_a_mount_is_told_at_once(
    image: Image, tmp_path: Path
) -> None:
    place, said = tmp_path / "mount", tmp_path / "said"
    place.mkdir()
    (tmp_path / "a").write_bytes(b"x" * 10 * BLOCK)
    image.do("shmld", tmp_path / "a")
    with open(said, "wb") as stderr, mounted(image, place, stderr=stderr) as process:
        os.truncate(image.data, BLOCK)
        refused_with_eio((place / "a").read_bytes)
        refused_with_eio(lambda: os.listdir(place))
        assert process.poll() is None
    assert process.returncode == 0
    assert said.read_text().count("truncated while it was in use: every call fails with EIO") == 1
