"""The shm tools with damaged images, unusual names, limits, and with each other."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.scc.shmfs import Image as Client
from ciel.testing.shm_mounts import can_mount
from ciel.testing.shm_tools import TOOL_DIRECTORY, Image, fresh_image
from ciel_tests.clusters.mounts import on_mount, run_on_mount

SMALL = ("--blocks=8", "--block-size=4KiB", "--inodes=6", "--entries=7")
SUPERBLOCK = {
    "magic": 0, "version": 8, "byte order": 12, "signature": 16, "block size": 24, "blocks": 32,
    "inodes": 40, "entries": 44, "clients": 48, "handles": 52, "shards": 56, "control size": 64,
    "data size": 72, "checksum": 80,
}  # fmt: skip
INODE_LOCK = 128 + 3 * 128  # behind the superblock and three other locks: scc/FORMAT.md
WAIT_S = 20.0
USERS = ("shmlist", "shmdf", "shmdump")


@pytest.fixture
def image() -> Iterator[Image]:
    with fresh_image(*SMALL) as image:
        yield image


def poke(path: Path, offset: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def load(image: Image, directory: Path, name: str, size: int = 1) -> None:
    path = directory / name
    path.write_bytes(b"x" * size)
    image.do("shmld", path)
    path.unlink()


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", SUPERBLOCK)
def test_an_image_with_a_damaged_superblock_is_refused_and_stays_as_it_is(
    image: Image, field: str
) -> None:
    offset = SUPERBLOCK[field]
    byte = image.control.read_bytes()[offset]
    poke(image.control, offset, bytes([byte ^ 0x40]))
    before = image.control.read_bytes()
    for tool in ("shmlist", "shmdf"):
        assert "is not an image" in image.refusal(tool)
    assert image.run("shmfsck").returncode in (1, 2)
    assert b"superblock of" in image.run("shmdump").stdout
    assert image.control.read_bytes() == before


@pytest.mark.parametrize("part", ["control", "data"])
@pytest.mark.parametrize("size", [0, 1, 100, 4096])
def test_an_image_that_was_cut_is_refused(image: Image, part: str, size: int) -> None:
    os.truncate(image.control if part == "control" else image.data, size)
    for tool in USERS:
        image.refusal(tool)
    assert image.run("shmfsck").returncode in (1, 2)


@pytest.mark.parametrize(
    "part, size, wanted",
    [("control", 4096, ""), ("control", 100, "at least 128"), ("data", 4096, "32768")],
)
def test_an_image_that_was_truncated_is_refused_with_its_size(
    image: Image, part: str, size: int, wanted: str
) -> None:
    path = image.control if part == "control" else image.data
    text = f"{path} was truncated: it has {size} bytes, and {wanted or path.stat().st_size} belong"
    os.truncate(path, size)
    commands = (
        "shmlist",
        "shmdf",
        "shmdump",
        "shmst a -",
        "shmrm a",
        "shmln a b",
        "shmld /dev/null",
    )
    for command in commands:
        assert text in image.refusal(*command.split())
    for command in ("shmfsck", "shmfsck --sweep"):
        assert text in image.refusal(*command.split(), status=2)
    if can_mount():
        assert text in image.refusal("shmfs-fuse", "/mnt")


def said_of(image: Image, path: Path) -> bytes:
    return f"{path}: the image was truncated while it was in use\n".encode()


def test_a_tool_that_touches_what_was_truncated_ends_with_a_sentence(
    image: Image, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    alive = image.start("shmld", pipe)  # has the first place among the clients
    wait_until(lambda: image.usage()["attached"] == 1)
    dead = image.start("shmld", pipe)
    wait_until(lambda: image.usage()["attached"] == 2)
    dead.kill()
    dead.communicate()
    poke(image.control, INODE_LOCK, struct.pack("<I", 1 << 11 | 1))  # as if `alive` held it
    sweeper = image.start("shmfsck", "--sweep")
    with open(image.control, "rb") as control:
        wait_until(lambda: os.pread(control.fileno(), 4, INODE_LOCK)[3] & 0x80)  # it sleeps
    os.truncate(image.control, 0)
    with sweeper:
        assert sweeper.communicate(timeout=60)[1] == b"shmfsck: " + said_of(image, image.control)
    assert sweeper.returncode == 2
    with alive:
        pipe.write_bytes(b"")
        assert alive.communicate(timeout=60)[1] == b"shmld: " + said_of(image, image.control)
    assert alive.returncode == 1


def test_a_store_of_what_was_truncated_says_why_it_fails(tmp_path: Path) -> None:
    with fresh_image("--blocks=256", "--block-size=4KiB") as image:
        load(image, tmp_path, "a", 1 << 20)  # many times what a pipe takes
        with image.start("shmst", "a", "-") as store:
            assert store.stdout is not None
            assert store.stdout.read(1) == b"x"
            os.truncate(image.data, 4096)
            out, said = store.communicate(timeout=60)
        assert store.returncode == 1
        assert len(out) < 1 << 20
        text = b"shmst: a cannot be stored in standard output: the image was truncated while it was"
        assert said == text + b" in use\n"


def test_a_python_process_that_uses_an_image_keeps_its_own_sigbus(image: Image) -> None:
    script = (
        "import pathlib, signal, sys\n"
        "from ciel.scc.shmfs import Image\n"
        "with Image.open(*map(pathlib.Path, sys.argv[1:])):\n"
        "    caught = [line for line in open('/proc/self/status') if line.startswith('SigCgt')]\n"
        "    assert not int(caught[0].split()[1], 16) >> signal.SIGBUS - 1 & 1\n"
    )
    subprocess.run([sys.executable, "-c", script, image.control, image.data], check=True)


def test_an_image_that_is_not_there_is_said_so() -> None:
    with fresh_image(create=False) as image:
        for tool in USERS:
            assert "shminit makes an image" in image.refusal(tool)
        image.refusal("shmfsck", status=2)
        image.control.mkdir()
        image.data.write_bytes(b"x")
        assert "cannot be opened" in image.refusal("shmrm", "a")
        assert "not a file" in image.refusal("shmdf")
        image.control.rmdir()


def test_a_check_ends_on_any_bytes(image: Image, tmp_path: Path) -> None:
    for name in "abc":
        load(image, tmp_path, name, 5000)
    sound = image.control.read_bytes()
    chance = random.Random(6)
    found = 0
    for _ in range(60):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(128, len(sound))] = chance.randrange(256)
        image.control.write_bytes(damaged)
        ended = image.run("shmfsck")
        assert ended.returncode in (0, 1)
        found += ended.returncode
        assert (b" problem" in ended.stderr) == bool(ended.returncode)
    assert found > 5
    image.control.write_bytes(sound)
    image.assert_clean()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a/"])
def test_an_image_is_called_by_a_plain_name(name: str) -> None:
    with fresh_image(create=False) as image:
        for tool in ("shminit", "shmdf"):
            told = image.refusal(tool, f"--name={name}", status=2)
            assert told.endswith(f"a plain name, or a path that begins with a slash, not '{name}'")
        image.environ["SHMFS_NAME"] = name
        if name:  # an empty variable counts as not set
            assert "a plain name" in image.refusal("shmfsck", status=2)


@pytest.mark.parametrize("part", ["control", "data"])
def test_a_pipe_or_a_link_in_the_place_of_an_image_is_refused_at_once(
    image: Image, tmp_path: Path, part: str
) -> None:
    path = image.control if part == "control" else image.data
    shutil.copyfile(path, tmp_path / "kept")
    path.unlink()
    path.symlink_to(tmp_path / "kept")
    for what in ("a link", "not a file"):
        assert f"it is {what}" in image.refusal("shmdf")
        assert f"it is {what}" in image.refusal("shmfsck", status=2)
        path.unlink()
        os.mkfifo(path)
    image.do("shminit", *SMALL, "--force")
    image.assert_clean()


# --- making an image ------------------------------------------------------------------------------


def test_of_several_that_make_an_image_at_once_one_does() -> None:
    with fresh_image(create=False) as image:
        processes = [image.start("shminit", *SMALL) for _ in range(8)]
        errors = [process.communicate(timeout=60)[1].decode() for process in processes]
        assert sorted(process.returncode for process in processes) == [0, *[1] * 7]
        assert sum("another shminit" in e or "already" in e for e in errors) == 7
        image.assert_clean()


def test_what_is_there_is_made_anew_only_by_force(image: Image, tmp_path: Path) -> None:
    load(image, tmp_path, "a")
    assert "there is an image" in image.refusal("shminit", *SMALL)
    assert "a" in image.names()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with image.start("shmld", pipe) as user, open(pipe, "wb") as end:
        image.do("shminit", *SMALL, "--force")
        assert image.names() == {}
        end.write(b"content")  # whoever has the old one keeps it
        end.close()
        assert user.wait(20) == 0
    assert image.names() == {}


def test_what_a_killed_shminit_left_is_no_obstacle(image: Image) -> None:
    image.data.unlink()  # between the names of the two files
    image.do("shminit", *SMALL)
    image.assert_clean()


@pytest.mark.parametrize("part", ["control", "data"])
def test_the_other_file_alone_is_no_obstacle(image: Image, part: str) -> None:
    (image.control if part == "control" else image.data).unlink()
    image.do("shminit", *SMALL)
    image.assert_clean()


SMALL_SHM = """
import os, subprocess, sys
home = sys.argv[1]
def run(*words):
    return subprocess.run([f"{home}/{words[0]}", *words[1:]], capture_output=True, text=True)
refused = run("shminit")
assert refused.returncode == 1, refused
assert "/dev/shm is too small: the image takes 1.0 GiB and 64 MiB are free" in refused.stderr
assert os.listdir("/dev/shm") == []
assert run("shminit", "--blocks", "62").returncode == 0
os.truncate("/dev/shm/shmfs-data", 0)
os.truncate("/dev/shm/shmfs-data", 62 << 20)  # as a copy may be: all holes
with open("/dev/shm/other", "wb") as other:
    other.write(bytes(20 << 20))
refused = run("shmrm", "a")
assert refused.returncode == 1, refused
assert "there is not enough memory for all of /dev/shm/shmfs-data" in refused.stderr
"""


def test_a_small_dev_shm_is_said_to_be_small_and_nobody_dies_by_sigbus(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.py"
    scenario.write_text(SMALL_SHM.replace("sys.argv[1]", repr(str(TOOL_DIRECTORY))))
    mount = ["-t", "tmpfs", "-o", "size=64m", "none"]
    assert run_on_mount(mount, scenario, Path("/dev/shm")) == 0


def test_drop_caches_says_what_it_takes_where_it_may_not() -> None:
    command = on_mount(
        ["-t", "tmpfs", "none"], Path("/proc/sys/vm"), [str(TOOL_DIRECTORY / "drop_caches")]
    )
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("drop_caches: cannot drop the caches: ")
    assert "run it as root" in ended.stderr


# --- names and limits -----------------------------------------------------------------------------


def test_names_have_1_to_255_bytes_and_no_slash(image: Image, tmp_path: Path) -> None:
    longest = "n" * 255
    load(image, tmp_path, longest)
    image.do("shmln", longest, "\N{SNOWMAN}" * 85)
    for name in ("", "n" * 256, "a/b", "/"):
        text = image.refusal("shmln", longest, name)
        assert "name" in text
        for tool in ("shmrm", "shmdump"):
            image.refusal(tool, name)
        image.refusal("shmst", name, "-")
    image.assert_clean()


def test_without_blocks_nothing_is_loaded_and_nothing_lost(image: Image, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * (8 * 4096 + 1))
    text = image.refusal("shmld", big)
    assert image.names() == {}
    assert image.usage()["free_blocks"] == 8
    os.truncate(big, 8 * 4096)
    image.do("shmld", big)
    assert image.usage()["free_blocks"] == 0
    assert image.refusal("shmld", sys.executable)[-20:] == text[-20:]
    image.do("shmrm", "big")
    image.assert_clean()
    assert image.usage()["free_blocks"] == 8


def test_without_inodes_or_entries_nothing_is_changed(image: Image, tmp_path: Path) -> None:
    for name in "abcdef":
        load(image, tmp_path, name, 0)
    more = tmp_path / "more"
    more.write_bytes(b"")
    image.refusal("shmld", more)  # six inodes, seven entries
    image.do("shmln", "a", "a2")
    image.refusal("shmln", "a", "a3")
    usage = image.usage()
    assert (usage["free_inodes"], usage["free_entries"]) == (0, 0)
    image.do("shmrm", "a2", *"abcdef")
    image.assert_clean()
    usage = image.usage()
    assert (usage["free_inodes"], usage["free_entries"]) == (6, 7)


def test_a_file_has_no_more_names_than_can_be_counted(tmp_path: Path) -> None:
    most = 65535
    with fresh_image("--blocks=8", "--block-size=4KiB", "--entries=65600") as image:
        load(image, tmp_path, "0")
        with Client.open(image.control, image.data) as client:
            for n in range(1, most):
                client.link("0", f"{n}")
        assert "too many names" in image.refusal("shmln", "0", "more")
        image.do("shmrm", "1")
        image.do("shmln", "0", "more")
        image.assert_clean()


def test_more_programs_than_there_are_places_for_are_refused() -> None:
    with fresh_image(*SMALL, "--clients=2") as image:
        with Client.open(image.control, image.data), Client.open(image.control, image.data):
            assert "too many processes" in image.refusal("shmrm", "a")
            assert image.names() == {}  # a tool that only reads takes no place
        assert image.names() == {}


def test_the_tools_look_at_an_image_in_a_directory(image: Image) -> None:
    directory = Path(f"/dev/shm/{image.name}")
    directory.mkdir()
    try:
        image.control.rename(directory / "control")
        image.data.rename(directory / "data")
        image.assert_clean()
        assert image.names() == {}
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
