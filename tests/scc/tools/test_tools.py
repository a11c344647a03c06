"""The shm tools, each as a program, on real images under /dev/shm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.storage.device_semaphores import QueueEntry
from ciel.storage.devices import device_of
from ciel.testing.shm_tools import TOOL_DIRECTORY, TOOLS, Image, fresh_image
from ciel_tests.clusters.mounts import on_mount

BLOCK = 4096
WAIT_S = 20.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Image]:
    with fresh_image("--blocks=256", "--block-size=4KiB") as image:
        yield image


@pytest.fixture
def image(shared: Image) -> Iterator[Image]:
    yield shared
    for name in shared.names():
        shared.do("shmrm", os.fsencode(name))
    shared.assert_clean()
    usage = shared.usage()
    assert usage["free_blocks"] == usage["blocks"]
    assert usage["free_inodes"] == usage["inodes"]
    assert usage["free_entries"] == usage["entries"]


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str | bytes, bytes], bytes]:
    """Return what makes a file to be loaded, and says where."""

    def make(name: str | bytes, content: bytes) -> bytes:
        path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
        with open(path, "wb") as file:
            file.write(content)
        return path

    return make


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


Source = Callable[[str | bytes, bytes], bytes]


@pytest.mark.requirement("CIB-21", "CIB-25")
def test_an_image_made_without_arguments_has_1024_of_each_and_blocks_of_1_mib() -> None:
    with fresh_image() as image:
        usage = image.usage()
        assert usage["block_bytes"] == 1 << 20
        assert usage["blocks"] == usage["free_blocks"] == 1024
        assert usage["inodes"] == usage["free_inodes"] == 1024
        assert usage["entries"] == usage["free_entries"] == 1024
        assert image.data.stat().st_size == 1 << 30
        assert image.data.stat().st_blocks * 512 == 1 << 30  # reserved, not only promised
        assert image.control.stat().st_mode & 0o777 == 0o600


@pytest.mark.requirement("CIB-21")
def test_options_shape_an_image_and_count_more_than_the_environment() -> None:
    with fresh_image(create=False) as image:
        image.environ |= {"SHMFS_BLOCKS": "7", "SHMFS_BLOCK_SIZE": "8KiB", "SHMFS_INODES": "5"}
        image.do("shminit", "--entries", "9", "--inodes=6", "--shards=1")
        usage = image.usage()
        assert usage["block_bytes"] == 8192
        assert (usage["blocks"], usage["inodes"], usage["entries"]) == (7, 6, 9)


@pytest.mark.requirement("CIB-22", "CIB-25")
def test_what_is_loaded_is_listed_and_stored_as_it_was(
    image: Image, source: Source, tmp_path: Path
) -> None:
    contents = {f"f{n}": os.urandom(n) for n in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 5)}
    image.do("shmld", *(source(name, content) for name, content in contents.items()))
    names = image.names()
    assert {name: row["size_bytes"] for name, row in names.items()} == {
        name: len(content) for name, content in contents.items()
    }
    assert all(row["committed"] for row in names.values())
    for name, content in contents.items():
        image.do("shmst", name, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == content
        assert image.do("shmst", name, "-") == content


@pytest.mark.requirement("CIB-22")
def test_an_alias_is_the_same_file_and_keeps_it(image: Image, source: Source) -> None:
    image.do("shmld", source("original", b"content"))
    image.do("shmln", "original", "alias1")
    image.do("shmln", "alias1", "alias2")
    image.do("shmrm", "original")
    names = image.names()
    assert names["alias1"]["inode"] == names["alias2"]["inode"]
    assert names["alias1"]["links"] == 2
    assert image.do("shmst", "alias2", "-") == b"content"


def test_several_are_removed_though_one_is_not_there(image: Image, source: Source) -> None:
    image.do("shmld", source("a", b"1"), source("b", b"2"))
    assert image.refusal("shmrm", "a", "none", "b").startswith("none cannot be removed: ")
    assert image.names() == {}


def test_several_are_loaded_though_one_cannot_be(
    image: Image, source: Source, tmp_path: Path
) -> None:
    text = image.refusal("shmld", source("a", b"1"), tmp_path / "none", source("b", b"2"))
    assert text == f"{tmp_path}/none cannot be read: No such file or directory"
    assert set(image.names()) == {"a", "b"}


def test_a_name_is_loaded_once(image: Image, source: Source) -> None:
    image.do("shmld", source("a", b"first"))
    assert "a cannot be loaded: " in image.refusal("shmld", source("a", b"second"))
    assert image.do("shmst", "a", "-") == b"first"


def test_a_directory_is_not_loaded(image: Image, tmp_path: Path) -> None:
    text = image.refusal("shmld", tmp_path)
    assert text == f"{tmp_path} cannot be loaded: it is a directory"


def test_a_store_that_fails_leaves_the_old_file(image: Image, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    image.refusal("shmst", "none", out)
    assert out.read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]
    assert "it is a directory" in image.refusal("shmst", "none", tmp_path)


def test_a_store_goes_through_links_and_into_devices(
    image: Image, source: Source, tmp_path: Path
) -> None:
    image.do("shmld", source("a", b"content"))
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "out").write_text("old")
    image.do("shmst", "a", tmp_path / "link")
    assert (tmp_path / "out").read_bytes() == b"content"
    assert (tmp_path / "link").is_symlink()
    image.do("shmst", "a", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_a_store_over_a_file_leaves_its_mode(image: Image, source: Source, tmp_path: Path) -> None:
    image.do("shmld", source("a", b"content"))
    out = tmp_path / "out"
    out.write_text("old")
    out.chmod(0o640)
    image.do("shmst", "a", out)
    assert out.read_bytes() == b"content"
    assert out.stat().st_mode & 0o777 == 0o640


def test_a_store_through_a_link_that_leads_nowhere_is_refused(
    image: Image, source: Source, tmp_path: Path
) -> None:
    image.do("shmld", source("a", b"content"))
    link = tmp_path / "link"
    link.symlink_to("nothing")
    assert "a link that leads nowhere" in image.refusal("shmst", "a", link)
    assert link.is_symlink()


def test_a_store_into_what_is_full_says_so(image: Image, source: Source) -> None:
    image.do("shmld", source("a", b"content"))
    assert "No space left" in image.refusal("shmst", "a", "/dev/full")


def test_shmls_takes_the_name_with_a_blank_behind_it(image: Image, source: Source) -> None:
    image.do("shmls", source("file-1", b"x") + b" ", "2")
    image.do("shmls", source("file-2 ", b"y"), "0")
    assert set(image.names()) == {"file-1", "file-2 "}


@pytest.mark.requirement("CIB-25", "CIB-40")
def test_one_waits_for_the_disk_until_the_other_has_loaded(image: Image, tmp_path: Path) -> None:
    pipe, other = tmp_path / "pipe", tmp_path / "other"
    os.mkfifo(pipe)
    other.write_bytes(b"other")
    device = device_of(str(tmp_path))
    line = Path(f"/dev/shm/ciel-io-{os.getuid()}", device.name)
    with image.start("shmls", pipe, "1") as first, open(pipe, "wb") as end:
        wait_until(lambda: image.usage()["disk_jobs"] == 1)
        with image.start("shmls", other, "1") as second:
            if device.is_limited:
                wait_until(lambda: len(list(line.iterdir())) >= 2)  # both are in the line
                assert "other" not in image.names()
            end.write(b"content")
            end.close()
            assert first.wait(WAIT_S) == 0
            assert second.wait(WAIT_S) == 0
    assert image.do("shmst", "pipe", "-") == b"content"
    assert image.do("shmst", "other", "-") == b"other"


@pytest.mark.requirement("CIB-40")
@pytest.mark.parametrize("options", [(), ("--io", "1")])
def test_loads_and_stores_wait_for_the_disk_jobs_of_other_programs(
    image: Image, source: Source, tmp_path: Path, options: tuple[str, ...]
) -> None:
    device = device_of(str(tmp_path))
    if not device.is_limited:
        pytest.skip("files of this directory are in memory")
    content, out = os.urandom(100_000), tmp_path / "out"
    path = source("a", content)
    image.do("shmld", "--io", "0", path)
    line = Path(f"/dev/shm/ciel-io-{os.getuid()}", device.name)
    for command in (("shmld", source("b", content)), ("shmst", "a", str(out))):
        others = [QueueEntry(device.name, 32) for _ in range(4)]
        with image.start(command[0], *options, *command[1:]) as waiting:
            wait_until(lambda: len(list(line.iterdir())) >= 5)
            assert waiting.poll() is None
            for other in others:
                other.release()
            assert waiting.wait(WAIT_S) == 0
    assert out.read_bytes() == image.do("shmst", "b", "-") == content


def test_a_machine_without_shared_memory_is_told_so(tmp_path: Path) -> None:
    device, source = tmp_path / "device", tmp_path / "source"
    device.write_bytes(bytes(8 << 20))
    source.write_bytes(bytes(100_000))
    if not device_of(str(source)).is_limited:
        pytest.skip("files of this directory are in memory")
    environ = {**os.environ, "SHMFS_NAME": str(device)}
    init = [str(TOOL_DIRECTORY / "shminit"), "--blocks", "200", "--block-size", "4KiB"]
    subprocess.run(init, env=environ, check=True, timeout=WAIT_S)
    load = [str(TOOL_DIRECTORY / "shmld"), str(source)]
    command = on_mount(["-t", "tmpfs", "none"], Path("/dev"), load)
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 1
    assert ended.stderr.endswith("failed: /dev/shm is missing\n")


def test_small_files_are_loaded_at_once(image: Image, source: Source, tmp_path: Path) -> None:
    device = device_of(str(tmp_path))
    others = [QueueEntry(device.name, 32) for _ in range(4)]
    image.do("shmld", source("a", b"x" * 65536))
    image.do("shmst", "a", tmp_path / "out")
    for other in others:
        other.release()


def test_a_loader_that_is_killed_leaves_nothing(image: Image, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with image.start("shmld", pipe) as loader, open(pipe, "wb") as end:
        end.write(b"x" * 3 * BLOCK)
        end.flush()
        wait_until(lambda: image.usage()["free_blocks"] < 256)
        loader.send_signal(signal.SIGKILL)
        loader.wait(WAIT_S)
    assert "clean" in image.do("shmfsck").decode()
    assert image.do("shmfsck", "--sweep").startswith(b"1 dead client swept\n")
    assert "pipe" not in image.names()


def test_names_of_any_bytes_are_listed_for_people_and_programs(
    image: Image, source: Source
) -> None:
    name = b'a "b\\ \xc3\xa9 \xff\x1b[1m \xe2\x80\xae'
    image.do("shmld", source(name, b"x"))
    assert os.fsencode(next(iter(image.names()))) == name
    line = image.do("shmlist").decode()
    assert line.endswith('a "b\\\\ \xe9 \\xff\\x1b[1m \\xe2\\x80\\xae\n')


@pytest.mark.requirement("CIB-22")
def test_shmlist_and_shmdf_tell_people(image: Image, source: Source) -> None:
    image.do("shmld", source("a", b"x" * 5000))
    assert image.do("shmlist").split() == [b"5000", b"1", b"committed", b"a"]
    rows = [line.split() for line in image.do("shmdf").decode().splitlines()]
    assert ["blocks", "256", "2", "254"] in rows
    assert ["inodes", "1024", "1", "1023"] in rows


def test_shmdump_shows_where_a_file_lies(image: Image, source: Source) -> None:
    image.do("shmld", source("first", b"x" * BLOCK), source("second", b"y" * 2 * BLOCK))
    text = image.do("shmdump", "second").decode()
    assert "256 blocks of 4096 bytes" in text
    assert "8192 bytes in 2 blocks in one run, 1 links, 0 handles, committed" in text
    assert text.splitlines()[-1].startswith("  blocks: ")
    assert "broken" not in text


def test_shmdump_says_that_a_file_is_not_there(image: Image) -> None:
    assert image.refusal("shmdump", "none").startswith("none cannot be shown: ")


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_tells_what_it_does_and_its_version(shared: Image, tool: str) -> None:
    assert shared.do(tool, "--help").decode().startswith(f"Usage: {tool} ")
    assert shared.do(tool, "--version").decode().startswith(f"{tool} 1.")


@pytest.mark.parametrize(
    "command",
    [
        "shmld", "shmln a", "shmln a b c", "shmst a", "shmls a", "shmls a b", "shmls a -1", "shmrm",
        "shmlist a", "shmdf --what", "shmdf -x", "shmdf --json=1", "shmfsck a", "shminit a",
        "shminit --blocks", "shminit --blocks=0", "shminit --blocks=1x", "shminit --blocks=-5",
        "shminit --block-size=5000", "shminit --block-size=2KiB", "shminit --inodes=99999999999999",
        "shminit --shards=3", "shminit --blocks=18446744073709551617", "drop_caches now",
    ],
)  # fmt: skip
def test_a_command_line_that_makes_no_sense_ends_with_2(shared: Image, command: str) -> None:
    tool, *arguments = command.split()
    shared.refusal(tool, *arguments, status=2)


def test_what_looks_like_an_option_is_a_name_after_two_dashes(image: Image, source: Source) -> None:
    source("-x", b"content")
    image.do("shmld", source("-x", b"content"))
    image.do("shmrm", "--", "-x")
    assert image.names() == {}


def test_an_output_that_nobody_takes_is_a_failure(image: Image) -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [TOOL_DIRECTORY / "shmdf"],
            env=image.environ,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ended.returncode == 1
    assert b"standard output cannot be written" in ended.stderr


@pytest.mark.requirement("CIB-40")
def test_loads_and_stores_share_the_limit_of_the_image(
    image: Image, source: Source, tmp_path: Path
) -> None:
    content, out, pipe = os.urandom(1000), tmp_path / "out", tmp_path / "pipe"
    image.do("shmld", source("a", content))
    os.mkfifo(pipe)
    for command in (("shmld", source("b", content)), ("shmst", "a", str(out))):
        with image.start("shmld", "--io-shared", "1", pipe) as holder, open(pipe, "wb") as end:
            end.write(b"x")
            end.flush()
            wait_until(lambda: image.usage()["disk_jobs"] == 1)
            with image.start(command[0], "--io-shared", "1", *command[1:]) as waiting:
                image.do("shmld", "--io", "0", source("meanwhile", b"x"))
                image.do("shmrm", "meanwhile")
                assert waiting.poll() is None
                holder.send_signal(signal.SIGKILL)  # its job ends with it
                assert waiting.wait(WAIT_S) == 0
            holder.wait(WAIT_S)
    assert out.read_bytes() == image.do("shmst", "b", "-") == content
