"""The tools and the mount ask the cores of an image for space (CIB-52). A core is the store of a
worker, here in a separate process, and moves its objects to its disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ciel.testing.homes import wait_for
from ciel.testing.shm_mounts import can_mount, ciel_shmfs, mounted
from ciel.testing.shm_tools import Image

BLOCK_BYTES = 64 << 10
BLOCKS = 64
OBJECT_BLOCKS = 4
FULL = BLOCKS // OBJECT_BLOCKS - 1
"""So many objects leave a sixteenth of the image free, so the store moves none by itself."""

STORE = f"""
import sys
from pathlib import Path
from ciel.scc.store import open_scc
from ciel.shm.work import wait_in_queue

instance, core, spill, place = sys.argv[1:]
Path(place).mkdir()
options = {{
    "cores": "2", "capacity": "{BLOCKS * BLOCK_BYTES}", "block": "{BLOCK_BYTES}",
    "instance": instance, "core": core, "spill": spill,
}}
with open_scc(options, Path(place)) as store:
    store.advise(lambda name: False, lambda name: None, wait_in_queue)  # as the store of a worker
    names, held = [], []
    for line in sys.stdin:
        word, _, argument = line.strip().partition(" ")
        if word == "put":
            for number in range(int(argument)):
                name = f"o{{len(names)}}"
                content = bytes([len(names) + 1]) * ({OBJECT_BLOCKS} * {BLOCK_BYTES})
                store.put(name, content)
                names.append(name)
        elif word == "hold":
            held += [store.open(name) for name in names]
        elif word == "share":
            known = [f"o{{n}}" for n in range(int(argument)) if store.discover(f"o{{n}}")]
            held += [store.open(name) for name in known]
        elif word == "read":
            for number, name in enumerate(names):
                assert store.get(name) == bytes([number + 1]) * ({OBJECT_BLOCKS} * {BLOCK_BYTES})
        mover = getattr(store, "mover", None)
        above = [name for name in names if mover is None or name in mover._above]
        print(",".join(above), flush=True)
"""


class Core:
    """The store of a worker, in a separate process."""

    def __init__(self, instance: str, core: int, place: Path, spill: str = "yes") -> None:
        arguments = [sys.executable, "-c", STORE, instance, str(core), spill, str(place)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, line: str) -> list[str]:
        """Let it do something; return its objects in memory."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the store has failed"
        return [name for name in answer.strip().split(",") if name]

    def end(self) -> None:
        self.process.communicate(timeout=20)


class Cores:
    """An image with stores of workers, and the tools."""

    def __init__(self, where: Path, stack: ExitStack) -> None:
        self.where = where
        self.instance = f"space-{os.getpid()}-{where.name[-20:]}"
        self.stack = stack
        self.image = Image(f"ciel-scc-{self.instance}")

    def start(self, core: int = 0, spill: str = "yes") -> Core:
        started = Core(self.instance, core, self.where / f"core{core}", spill)
        self.stack.callback(started.end)
        started.do("")
        return started

    def file(self, blocks: float, name: str = "file") -> Path:
        path = self.where / name
        path.write_bytes(os.urandom(int(blocks * BLOCK_BYTES)))
        return path


@pytest.fixture
def cores(tmp_path: Path) -> Iterator[Cores]:
    with ExitStack() as stack:
        cores = Cores(tmp_path, stack)
        yield cores
    assert not Path("/dev/shm", f"ciel-scc-{cores.instance}").exists()


@pytest.fixture
def mount(cores: Cores) -> Path:
    place = cores.where / "mount"
    place.mkdir()
    if not can_mount():
        refused = ciel_shmfs(cores.image, "mount", place)
        assert refused.returncode in (1, 2)
        pytest.xfail("no FUSE here; that is said clearly")
    return place


@pytest.mark.requirement("CIB-52")
def test_a_file_that_does_not_fit_is_loaded_when_idle_objects_have_gone(cores: Cores) -> None:
    core = cores.start()
    assert len(core.do(f"put {FULL}")) == FULL
    path = cores.file(10)
    assert cores.image.do("shmld", path) == b""
    assert cores.image.do("shmst", "file", cores.where / "copy") == b""
    assert (cores.where / "copy").read_bytes() == path.read_bytes()
    above = core.do("")
    assert above == [f"o{number}" for number in range(FULL - len(above), FULL)]  # the oldest go
    assert 0 < FULL - len(above) <= 3
    core.do("read")


@pytest.mark.requirement("CIB-52")
def test_the_oldest_objects_of_all_cores_go_first(cores: Cores) -> None:
    one, other = cores.start(0), cores.start(1)
    for core in (one, other, one):
        assert core.do("put 4")[-1] in ("o3", "o7")
    freed_blocks = 6 * OBJECT_BLOCKS
    free_blocks = BLOCKS - 12 * OBJECT_BLOCKS
    cores.image.do("shmld", cores.file(free_blocks + freed_blocks))
    assert one.do("") == ["o4", "o5", "o6", "o7"]
    assert other.do("") == ["o2", "o3"]


@pytest.mark.requirement("CIB-52")
def test_a_pipe_is_loaded_whole_although_its_size_is_not_known(cores: Cores) -> None:
    core = cores.start()
    core.do(f"put {FULL}")
    content = os.urandom(20 * BLOCK_BYTES + 1)
    fifo = cores.where / "fifo"
    os.mkfifo(fifo)
    feeder = threading.Thread(target=fifo.write_bytes, args=(content,))
    feeder.start()
    cores.image.do("shmld", fifo)
    feeder.join(20)
    cores.image.do("shmst", "fifo", cores.where / "copy")
    assert (cores.where / "copy").read_bytes() == content
    assert len(core.do("")) == FULL - 5  # 17 blocks were missing, and an object has four
    core.do("read")


@pytest.mark.requirement("CIB-52")
@pytest.mark.parametrize("limit", ["0", "1"])
def test_a_core_may_use_the_disk_while_the_tool_asks_it(cores: Cores, limit: str) -> None:
    """With a limit of 1, both wait for one disk: the tool must not ask during its turn."""
    cores.image.environ["SHMFS_IO"] = limit
    core = cores.start()
    core.do(f"put {FULL}")
    cores.image.do("shmld", cores.file(16))
    core.do("read")


@pytest.mark.requirement("CIB-52")
@pytest.mark.parametrize("why", ["in use", "held by two", "no disk", "larger than the image"])
def test_without_space_that_can_be_freed_the_error_is_as_ever(cores: Cores, why: str) -> None:
    core = cores.start(spill="no" if why == "no disk" else "yes")
    core.do(f"put {FULL}")
    blocks = 20
    if why == "in use":
        core.do("hold")
    elif why == "held by two":
        cores.start(1).do(f"share {FULL}")
        blocks = 2 * OBJECT_BLOCKS
    elif why == "larger than the image":
        blocks = BLOCKS + 1
    text = cores.image.refusal("shmld", cores.file(blocks))
    assert text.endswith("cannot be loaded: the image has no free blocks for more content")
    if why in ("in use", "no disk", "larger than the image"):
        assert len(core.do("")) == FULL
    core.do("read")


@pytest.mark.requirement("CIB-52")
@pytest.mark.slow
def test_a_core_that_does_not_answer_is_given_up(cores: Cores) -> None:
    core = cores.start()
    core.do(f"put {FULL}")
    core.process.send_signal(signal.SIGSTOP)
    try:
        loading = cores.image.start("shmld", cores.file(20))
        _, errors = loading.communicate(timeout=60)
    finally:
        core.process.send_signal(signal.SIGCONT)
    assert loading.returncode == 1
    assert b"the image has no free blocks" in errors
    core.do("read")


@pytest.mark.requirement("CIB-52")
def test_the_socket_of_a_dead_core_is_removed(cores: Cores) -> None:
    core = cores.start()
    core.do(f"put {FULL}")
    stale = Path("/dev/shm", f"ciel-scc-{cores.instance}", "space-1.dead")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
        bound.bind(str(stale))
    cores.image.do("shmld", cores.file(8))
    assert not stale.exists()


@pytest.mark.requirement("CIB-52")
def test_a_write_through_the_mount_waits_until_the_cores_have_freed_space(
    cores: Cores, mount: Path
) -> None:
    core = cores.start()
    core.do(f"put {FULL}")
    path = cores.file(10)
    with mounted(cores.image, mount):
        shutil.copyfile(path, mount / "written")
        with open(mount / "reserved", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8 * BLOCK_BYTES)
        assert (mount / "written").read_bytes() == path.read_bytes()
        assert len(core.do("")) < FULL
        core.do("read")
        (mount / "reserved").unlink()
        (mount / "written").unlink()
        wait_for(lambda: "written" not in cores.image.names(), "the end of the file")


@pytest.mark.requirement("CIB-52")
@pytest.mark.parametrize("has_core", [True, False])
def test_a_write_through_the_mount_fails_as_ever_if_nothing_can_be_freed(
    cores: Cores, mount: Path, has_core: bool
) -> None:
    core = cores.start()
    core.do(f"put {FULL}")
    core.do("hold")
    if not has_core:
        for path in Path("/dev/shm", f"ciel-scc-{cores.instance}").glob("space-*"):
            path.unlink()
    with mounted(cores.image, mount):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (mount / "large").write_bytes(bytes(20 * BLOCK_BYTES))
        (mount / "large").unlink()
        wait_for(lambda: "large" not in cores.image.names(), "the end of the file")
    core.do("read")
