"""shmfs as a directory. On hosts that cannot mount it, `ciel shmfs mount` says why."""

from __future__ import annotations

import errno
import mmap
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ciel.testing.shm_mounts import can_mount, ciel_shmfs, mounted
from ciel.testing.shm_tools import Image, fresh_image

BLOCK = 4096
BLOCKS = 512
WAIT_S = 20.0


class Mount:
    """A mounted image: its directory, and the tools, which are another client."""

    def __init__(self, image: Image, place: Path) -> None:
        self.image = image
        self.place = place

    def write(self, name: str, content: bytes, mode: int = 0o644) -> Path:
        """Make a file; without permission to write it is committed."""
        path = self.place / name
        path.write_bytes(content)
        path.chmod(mode)
        return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    place = tmp_path_factory.mktemp("mount")
    with fresh_image(f"--blocks={BLOCKS}", "--block-size=4KiB", "--inodes=300") as image:
        if not can_mount():
            refused = ciel_shmfs(image, "mount", place)
            assert refused.returncode in (1, 2)
            assert refused.stderr.startswith("ciel: ")
            pytest.xfail("no FUSE here; that is said clearly")
        with mounted(image, place):
            yield Mount(image, place)
        image.assert_clean()


@pytest.fixture
def mount(served: Mount) -> Iterator[Mount]:
    yield served
    for path in served.place.iterdir():
        path.unlink()
    wait_until(lambda: is_empty(served.image))  # the kernel closes files by and by


def is_empty(image: Image) -> bool:
    usage = image.usage()
    return usage["free_blocks"] == usage["blocks"] and usage["free_inodes"] == usage["inodes"]


def mounts_at(place: Path) -> bytes:
    """Return the lines of /proc/mounts about a place, in which a blank is \\040."""
    name = os.fsencode(str(place).replace(" ", "\\040"))
    lines = Path("/proc/mounts").read_bytes().splitlines()
    return b"\n".join(line for line in lines if name in line)


def guardian_of(process: subprocess.Popen[str]) -> int:
    """Return a pidfd of the process that unmounts when this process has ended."""
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return os.pidfd_open(int(pid))


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], WAIT_S)[0])


def refused_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        call()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.requirement("CIB-51")
def test_a_file_that_is_not_committed_is_an_ordinary_file(mount: Mount) -> None:
    path = mount.place / "a"
    with open(path, "w+b") as file:
        file.write(b"0123456789")
        file.seek(5 * BLOCK)
        file.write(b"end")
        file.seek(4)
        file.write(b"xx")
        file.seek(0)
        assert file.read() == b"0123xx6789" + bytes(5 * BLOCK - 10) + b"end"
        file.truncate(6)
    with open(path, "ab") as file:
        file.write(b"more")
    os.truncate(path, 12)
    assert path.read_bytes() == b"0123xxmore\0\0"
    wait_until(lambda: not mount.image.names()["a"]["writing"])  # the kernel closes by and by
    row = mount.image.names()["a"]
    assert (row["size_bytes"], row["committed"]) == (12, False)


@pytest.mark.requirement("CIB-51")
def test_mapped_memory_is_the_file(mount: Mount) -> None:
    with open(mount.place / "a", "w+b") as file:
        file.truncate(3 * BLOCK)
        with mmap.mmap(file.fileno(), 0) as memory:
            memory[BLOCK : BLOCK + 4] = b"here"
            memory.flush()
        file.seek(BLOCK)
        assert file.read(4) == b"here"


def test_taking_the_permission_to_write_commits(mount: Mount) -> None:
    path = mount.write("a", b"content", 0o444)
    assert mount.image.names()["a"]["committed"]
    for call in (
        lambda: os.open(path, os.O_RDWR),
        lambda: os.truncate(path, 3),
        lambda: path.chmod(0o644),
    ):
        refused_with(errno.EROFS, call)
    assert path.read_bytes() == b"content"
    assert mount.image.do("shmst", "a", "-") == b"content"


def test_a_descriptor_that_was_open_for_writing_writes_no_more(mount: Mount) -> None:
    with open(mount.place / "a", "wb", buffering=0) as file:
        file.write(b"content")
        (mount.place / "a").chmod(0o400)
        refused_with(errno.EROFS, lambda: file.write(b"more"))
    assert (mount.place / "a").read_bytes() == b"content"


def test_a_file_made_without_permission_to_write_is_committed_when_closed(mount: Mount) -> None:
    fd = os.open(mount.place / "a", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o444)
    os.write(fd, b"content")
    assert not mount.image.names()["a"]["committed"]
    os.close(fd)
    assert (mount.place / "a").read_bytes() == b"content"
    wait_until(lambda: mount.image.names()["a"]["committed"])  # the kernel closes by and by


@pytest.mark.requirement("CIB-51")
def test_what_others_do_is_seen_at_once(mount: Mount, tmp_path: Path) -> None:
    for content in (b"first", b"second, and longer"):
        (tmp_path / "a").write_bytes(content)
        mount.image.do("shmld", tmp_path / "a")
        assert (mount.place / "a").read_bytes() == content
        mount.image.do("shmln", "a", "b")
        mount.image.do("shmrm", "a")
        assert os.listdir(mount.place) == ["b"]
        assert not (mount.place / "a").exists()
        mount.image.do("shmrm", "b")


def test_a_file_that_another_core_writes_is_busy(mount: Mount, tmp_path: Path) -> None:
    (mount.place / "kept").write_bytes(b"x")
    with open(mount.place / "kept", "r+b"), mounted(mount.image, tmp_path):
        refused_with(errno.ETXTBSY, lambda: os.open(tmp_path / "kept", os.O_RDONLY))
    assert (mount.place / "kept").read_bytes() == b"x"


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_an_unlinked_file_stays_while_it_is_open(mount: Mount, mode: int) -> None:
    path = mount.write("a", b"content", mode)
    with open(path, "rb" if mode == 0o444 else "r+b") as file:
        path.unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        assert mount.image.usage()["free_inodes"] == 299
        assert file.read() == b"content"
        if mode == 0o644:
            file.write(b", and more")
            file.seek(0)
            assert file.read() == b"content, and more"


def test_names_are_linked_and_renamed(mount: Mount) -> None:
    a, b, c = (mount.place / name for name in "abc")
    mount.write("a", b"first", 0o444)
    os.link(a, b)
    refused_with(errno.EEXIST, lambda: os.link(a, b))
    assert a.stat().st_ino == b.stat().st_ino
    assert a.stat().st_nlink == 2
    a.unlink()
    assert b.stat().st_nlink == 1
    mount.write("c", b"second")
    os.rename(b, c)
    assert c.read_bytes() == b"first"
    assert sorted(os.listdir(mount.place)) == ["c"]
    os.link(c, b)
    os.rename(b, c)  # two names of one file: both stay
    assert sorted(os.listdir(mount.place)) == ["b", "c"]
    refused_with(errno.ENOENT, lambda: os.rename(a, c))


def test_what_flat_names_cannot_have_is_refused(mount: Mount) -> None:
    mount.write("a", b"")
    refused_with(errno.EPERM, lambda: os.mkdir(mount.place / "d"))
    refused_with(errno.EPERM, lambda: os.symlink("a", mount.place / "s"))
    refused_with(errno.EPERM, lambda: os.mkfifo(mount.place / "p"))
    refused_with(errno.ENOTDIR, lambda: os.rmdir(mount.place / "a"))
    refused_with(errno.ENOTDIR, lambda: os.open(mount.place / "a" / "b", os.O_RDONLY))
    too_long = mount.place / ("n" * 256)
    refused_with(errno.ENAMETOOLONG, lambda: os.open(too_long, os.O_CREAT | os.O_WRONLY))
    (mount.place / ("n" * 255)).touch()


def test_a_listing_goes_on_where_it_was_though_names_come_and_go(mount: Mount) -> None:
    for n in range(200):
        (mount.place / f"{n:03}").touch()
    met = []
    with os.scandir(mount.place) as entries:
        for n, entry in enumerate(entries):
            met.append(entry.name)
            if n == 20:
                for name in met[:20]:
                    (mount.place / name).unlink()
                (mount.place / "new").touch()
    stayed = {f"{n:03}" for n in range(200)} - set(met[:20])
    assert len(met) == len(set(met))
    assert stayed <= set(met)


def test_no_room_is_told_and_nothing_is_lost(mount: Mount) -> None:
    assert os.statvfs(mount.place).f_bavail == BLOCKS
    with open(mount.place / "a", "wb", buffering=0) as file:
        file.write(b"x" * (BLOCKS - 1) * BLOCK)
        refused_with(errno.ENOSPC, lambda: file.write(b"y" * 2 * BLOCK))
        refused_with(errno.ENOSPC, lambda: file.truncate((BLOCKS + 1) * BLOCK))
    assert (mount.place / "a").stat().st_size == (BLOCKS - 1) * BLOCK
    refused_with(errno.ENOSPC, lambda: mount.write("b", b"z" * 2 * BLOCK))
    with open(mount.place / "b", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, BLOCK)
        refused_with(errno.ENOSPC, lambda: os.posix_fallocate(file.fileno(), 0, 2 * BLOCK))


def test_modes_owners_and_times_are_kept_while_it_is_mounted(mount: Mount) -> None:
    path = mount.write("a", b"x", 0o640)
    os.utime(path, ns=(1_000_000_007, 2_000_000_009))
    status = path.stat()
    assert status.st_mode & 0o7777 == 0o640
    assert (status.st_atime_ns, status.st_mtime_ns) == (1_000_000_007, 2_000_000_009)
    assert status.st_uid == os.getuid()
    before_ns = mount.place.stat().st_mtime_ns
    os.link(path, mount.place / "b")
    assert mount.place.stat().st_mtime_ns > before_ns
    path.write_bytes(b"y")
    assert path.stat().st_mtime > 1e9


def test_many_read_and_write_at_once(mount: Mount) -> None:
    def work(n: int) -> bool:
        path = mount.place / f"f{n}"
        content = bytes([n]) * (10 * BLOCK + n)
        for _ in range(5):
            path.write_bytes(content)
            if path.read_bytes() != content:
                return False
            path.chmod(0o444)
            if path.read_bytes() != content:
                return False
            path.unlink()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_mount_ends_orderly_and_is_gone_when_it_is_killed(tmp_path: Path) -> None:
    with fresh_image("--blocks=16", "--block-size=4KiB") as image:
        place = tmp_path / "m p"
        place.mkdir()
        started = ciel_shmfs(image, "mount", place)
        if not can_mount():
            assert started.returncode in (1, 2)
            return
        assert started.returncode == 0, started.stderr
        (place / "a").write_bytes(b"unfinished")
        ended = ciel_shmfs(image, "unmount", place)
        assert ended.returncode == 0, ended.stderr
        assert not image.names()["a"]["committed"]
        with mounted(image, place) as process, open(place / "b", "wb", buffering=0) as file:
            file.write(b"x" * BLOCK)
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
            wait_until(lambda: b"shmfs" not in mounts_at(place))
        assert set(image.names()) <= {"a", "b"}
        image.do("shmfsck", "--sweep")
        assert set(image.names()) == {"a"}
        image.assert_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_once_a_mount_has_ended(
    mount: Mount, tmp_path: Path, number: signal.Signals
) -> None:
    with mounted(mount.image, tmp_path) as process:
        guardian = guardian_of(process)
        process.send_signal(number)
        assert has_ended(guardian)
        os.close(guardian)
        assert process.wait(WAIT_S) == (0 if number == signal.SIGTERM else -number)
    assert not mounts_at(tmp_path)
    mount.image.do("shmfsck", "--sweep")


def test_a_dead_mount_that_stayed_gives_way_to_the_next(mount: Mount, tmp_path: Path) -> None:
    with mounted(mount.image, tmp_path) as process:
        guardian = guardian_of(process)
        signal.pidfd_send_signal(guardian, signal.SIGKILL)
        assert has_ended(guardian)
        os.close(guardian)
        process.kill()
        process.wait(WAIT_S)
        refused_with(errno.ENOTCONN, lambda: os.statvfs(tmp_path))
    mount.image.do("shmfsck", "--sweep")
    started = ciel_shmfs(mount.image, "mount", tmp_path)
    assert started.returncode == 0, started.stderr
    assert mounts_at(tmp_path).count(b"shmfs") == 2  # once, as its source and as its kind
    assert ciel_shmfs(mount.image, "unmount", tmp_path).returncode == 0
    assert not mounts_at(tmp_path)


def test_nothing_is_mounted_over_a_mount(mount: Mount) -> None:
    path = mount.write("a", b"content")
    refused = ciel_shmfs(mount.image, "mount", mount.place)
    assert refused.returncode == 1
    assert refused.stderr.endswith("shared memory is mounted there already\n")
    assert mounts_at(mount.place).count(b"shmfs") == 2  # once, as its source and as its kind
    assert path.read_bytes() == b"content"


@pytest.mark.parametrize("what", ["no image", "no directory", "no words"])
def test_a_mount_that_cannot_be_is_refused_with_a_sentence(tmp_path: Path, what: str) -> None:
    with fresh_image("--blocks=16", "--block-size=4KiB", create=what != "no image") as image:
        words = [] if what == "no words" else ["mount", str(tmp_path / "none")]
        if what == "no image":
            (tmp_path / "none").mkdir()
        refused = ciel_shmfs(image, *words)
        assert refused.returncode in (1, 2)
        assert refused.stderr.startswith("usage: " if what == "no words" else "ciel: ")
        assert refused.stdout == ""
