"""The shm tools that only read: they leave the image as it is, and hold nothing in it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.scc.shapes import ShmfsError
from ciel.scc.shmfs import Image as Client
from ciel.testing.shm_tools import TOOL_DIRECTORY, Image, fresh_image
from ciel_tests.clusters.mounts import on_mount

WITHOUT_TRACE = ("shmlist", "shmlist --json", "shmdf", "shmdf --json", "shmdump a", "shmfsck")
READERS = (*WITHOUT_TRACE, "shmst a -")  # which counts itself if it may write
CONTENT = bytes(range(256)) * 2048  # 512 KiB: many times what a pipe takes
RUNS = 40
SIZE = 100 * 4096  # of the file that comes and goes
# Of the first group in an image of 64 clients with 1,024 handles each: scc/FORMAT.md.
SEQUENCE_OFFSET = 128 + 5 * 128 + 256 + 64 * (4224 + 8 * 1024)


@pytest.fixture
def image() -> Iterator[Image]:
    with fresh_image("--blocks=256", "--block-size=4KiB") as image:
        with Client.open(image.control, image.data) as client:
            put(client, "a", CONTENT)
        yield image


def put(client: Client, name: str, content: bytes) -> None:
    with client.create(name) as file:
        file.write(content, 0)
        file.commit()


def digests(image: Image) -> list[str]:
    return [hashlib.sha256(p.read_bytes()).hexdigest() for p in (image.control, image.data)]


def without_override() -> list[str]:
    """Return the command by which root, too, is refused what a file's mode refuses."""
    if os.geteuid():
        return []
    command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if not shutil.which("setpriv") or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("root may write to every file here")
    return command


@pytest.mark.parametrize("words", WITHOUT_TRACE)
def test_a_tool_that_only_reads_leaves_every_byte_of_the_image_as_it_was(
    image: Image, words: str
) -> None:
    before = digests(image)
    for _ in range(3):
        tool, *arguments = words.split()
        assert image.do(tool, *arguments)
    assert digests(image) == before


@pytest.mark.parametrize("words", READERS)
def test_a_tool_that_only_reads_works_on_an_image_of_mode_0444(image: Image, words: str) -> None:
    for path in (image.control, image.data):
        path.chmod(0o444)
    tool, *arguments = words.split()
    command = [*without_override(), str(TOOL_DIRECTORY / tool), *arguments]
    done = subprocess.run(command, env=image.environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert tool != "shmst" or done.stdout == CONTENT


def test_tools_that_only_read_work_on_a_read_only_mount(image: Image, tmp_path: Path) -> None:
    source, place = tmp_path / "image", tmp_path / "mount"
    source.mkdir()
    place.mkdir()
    shutil.copy(image.control, source / "control")
    shutil.copy(image.data, source / "data")
    mount = ["-o", "bind,ro", str(source)]
    for words in READERS:
        tool, *arguments = words.split()
        command = [str(TOOL_DIRECTORY / tool), "--name", str(place), *arguments]
        done = subprocess.run(on_mount(mount, place, command), capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b""), words
        assert tool != "shmst" or done.stdout == CONTENT
    refused = [str(TOOL_DIRECTORY / "shmrm"), "--name", str(place), "a"]
    done = subprocess.run(on_mount(mount, place, refused), capture_output=True, check=False)
    assert done.returncode == 1
    assert b"Read-only file system" in done.stderr


@pytest.mark.requirement("CIB-21")
def test_shmst_is_counted_and_keeps_the_file_that_it_reads(image: Image) -> None:
    assert image.usage()["disk_jobs"] == 0
    with image.start("shmst", "a", "-") as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(1) == CONTENT[:1]  # it has the file open, and waits for the pipe
        assert image.usage()["disk_jobs"] == 1
        image.do("shmrm", "a")
        assert reader.stdout.read() == CONTENT[1:]
    assert reader.returncode == 0
    assert image.usage()["disk_jobs"] == 0
    image.assert_clean()


def test_shmst_that_may_not_write_fails_when_the_file_is_removed_while_it_is_read(
    image: Image,
) -> None:
    command = without_override()
    image.control.chmod(0o444)
    with subprocess.Popen(
        [*command, str(TOOL_DIRECTORY / "shmst"), "a", "-"], env=image.environ,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as reader:  # fmt: skip
        assert reader.stdout is not None
        assert reader.stdout.read(1) == CONTENT[:1]
        image.control.chmod(0o600)
        image.do("shmrm", "a")
        _, err = reader.communicate(timeout=60)
    assert reader.returncode == 1
    assert b"a cannot be stored in standard output: the file was removed while it was read" in err


def test_readers_find_right_contents_or_say_why_not_while_files_come_and_go(
    image: Image, tmp_path: Path
) -> None:
    begins, ends = threading.Event(), threading.Event()

    def write() -> None:
        with Client.open(image.control, image.data) as client:
            begins.set()
            for turn in range(1 << 30):
                put(client, "b", bytes([turn % 256]) * SIZE)  # in the blocks of the last one
                if turn % 4 == 0 and ends.wait(0.002):
                    return
                client.unlink("b")

    writer = threading.Thread(target=write)
    writer.start()
    assert begins.wait(60)
    image.data.chmod(0o444)  # so that shmst holds no file, as a client would
    command = [*without_override(), str(TOOL_DIRECTORY / "shmst"), "b"]
    complete = 0
    try:
        for _ in range(RUNS):
            assert set(image.names()) <= {"a", "b"}
            out = tmp_path / "out"
            done = subprocess.run(
                [*command, str(out)], env=image.environ, capture_output=True, check=False
            )
            if done.returncode:
                reasons = (b"no file of that name", b"not committed", b"removed while it was read")
                assert any(reason in done.stderr for reason in reasons), done.stderr
                continue
            content = out.read_bytes()
            assert content == content[:1] * SIZE
            complete += 1
    finally:
        ends.set()
        writer.join()
    assert complete
    image.assert_clean()


@pytest.mark.slow
def test_readers_give_up_on_a_change_that_does_not_end(image: Image) -> None:
    with open(image.control, "r+b") as control:  # as a writer leaves it that died amid a change
        control.seek(SEQUENCE_OFFSET)
        sequence = control.read(1)[0]
        assert sequence % 2 == 0
        control.seek(SEQUENCE_OFFSET)
        control.write(bytes([sequence | 1]))
    image.data.chmod(0o444)
    command = [*without_override(), str(TOOL_DIRECTORY / "shmst"), "a", "-"]
    done = subprocess.run(command, env=image.environ, capture_output=True, check=False)
    for said in (done.stderr.decode(), image.refusal("shmlist")):
        assert "run shmfsck --sweep" in said
    assert image.do("shmst", "a", "-") == CONTENT  # a client takes the lock instead


def test_a_full_table_of_clients_does_not_keep_readers_away() -> None:
    with (
        fresh_image("--blocks=8", "--block-size=4KiB", "--clients=1") as image,
        Client.open(image.control, image.data) as client,
    ):
        put(client, "a", b"content")
        with pytest.raises(ShmfsError):
            Client.open(image.control, image.data)
        assert image.do("shmst", "a", "-") == b"content"
