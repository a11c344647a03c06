"""Stores of several kernels share an image in one file. A number stands for each kernel: its
processes have their own directory, and share only the file with the other kernel.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

import pytest

from ciel.scc import attachments
from ciel.scc.attachments import NoPlaceError
from ciel.scc.device import DEAD_S, Device, may_have_other_kernels
from ciel.scc.instances import instance_of, remove_instance
from ciel.scc.kind import KIND
from ciel.scc.shapes import ShmfsError
from ciel.scc.shmfs import Image
from ciel.scc.store import SccStore, open_cores
from ciel.storage.errors import StoreSpecError
from ciel.storage.interface import Capabilities, ObjectStore
from ciel.testing.homes import fields_of, wait_for
from ciel.testing.store_rules import pattern
from ciel.testing.store_suite import StoreSuite

HERE, THERE = 1, 2
"""Numbers of two kernels."""
FILE_BYTES = 48 << 20
CONTENT = pattern(2_000_000)
OPTIONS = {"kernels": "separate", "capacity": "16MiB", "cores": "4"}


files: set[Path] = set()


def file_of(where: Path) -> Path:
    """Return the file of a directory of a test, empty in the beginning."""
    name = blake2b(str(where).encode(), digest_size=8).hexdigest()
    path = Path(f"/dev/shm/ciel-kernels-{name}")
    if path not in files:
        files.add(path)
        with open(path, "wb") as file:
            file.truncate(FILE_BYTES)
    return path


def is_left(path: Path, kernel: int) -> bool:
    """Return whether a process still uses the file; directories of killed ones may be left."""
    instance = instance_of(path, kernel)
    remove_instance(instance)
    return Path("/dev/shm", f"ciel-scc-{instance}").exists()


@pytest.fixture(autouse=True)
def path(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty file in memory; nothing else is left."""
    yield file_of(tmp_path)
    left = [path for path in files for kernel in range(5) if is_left(path, kernel)]
    for path in files:
        path.unlink()
    files.clear()
    assert left == []


class SeparateRules(StoreSuite):
    """Each store of the suite has its own number of a kernel."""

    build = "coherent"

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> ObjectStore:
        core, kernel = 0, HERE
        if where.name == "other":
            where, core, kernel = where.parent, 1, THERE
        options = {
            "capacity": capacity_bytes or "32MiB", "block": 4096, "cores": 4, "core": core,
            "build": self.build, "shards": 1, "path": file_of(where), "kernels": "separate",
        }  # fmt: skip
        return open_cores({name: str(value) for name, value in options.items()}, kernel=kernel)

    def image_of(self, where: Path) -> Image:
        return Image.on(Device(file_of(where), kernel=HERE))

    def raw_name(self, where: Path, object_id: str) -> str:
        with Device(file_of(where), kernel=HERE) as device:
            return f"0.{device.core(0, waits=False).incarnation:08x}:{object_id}"

    def raw_get(self, where: Path, object_id: str) -> bytes | None:
        with self.image_of(where) as image:
            try:
                with image.open_file(self.raw_name(where, object_id)) as file:
                    return bytes(file.view())
            except ShmfsError:
                return None

    def raw_put(self, where: Path, object_id: str, content: bytes) -> None:
        with self.image_of(where) as image, image.create() as file:
            file.write(content, 0)
            file.commit(self.raw_name(where, object_id))

    def raw_damage(self, where: Path, object_id: str) -> None:
        name = self.raw_name(where, object_id)
        with self.image_of(where) as image, image.open_file(name) as file:
            start_bytes, length_bytes = file.runs(file.info().size_bytes)[0]
        with Device(file_of(where), kernel=HERE) as device:
            layout = device.layout()
            assert layout is not None
            device.mapping[layout.data_offset + start_bytes + length_bytes // 2] ^= 4


@pytest.mark.requirement("CIB-21", "CIB-30", "CIB-54")
class TestSeparateKernels(SeparateRules):
    capabilities = Capabilities(
        mappable=True, nameable=True, streaming=True, shared_between_processes=True, bounded=True,
        may_block=False,
    )  # fmt: skip


def opened(path: Path, kernel: int = HERE, /, **options: str) -> SccStore:
    """Open a store; without options, in the image that another store has made."""
    return open_cores({"path": str(path), **options}, kernel=kernel)


PROGRAM = """
import sys, time
from ciel.scc.store import open_cores
store = open_cores({"path": sys.argv[1]}, kernel=2)
store.put("theirs", b"x" * 100_000)
print(store.file_name("theirs"), flush=True)
sys.stdin.read()
"""


class Kernel:
    """A process that stands for another kernel: a store with one object."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)], stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.name = self.process.stdout.readline().strip()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def names_of(path: Path) -> list[str]:
    with Image.on(Device(path)) as image:
        return [name for name, _ in image.names()]


@pytest.mark.requirement("CIB-21", "CIB-30")
def test_a_kernel_finds_that_a_process_of_another_one_has_died(path: Path) -> None:
    with opened(path, **OPTIONS) as store, Kernel(path) as other:
        assert store.discover("theirs") is not None
        assert [*store] == ["theirs"]
        for _ in range(3):
            store.levels()
        assert other.name in names_of(path)  # it is alive, and keeps its names
        other.process.kill()
        store._next_sweep_s = 0.0

        def is_clean() -> bool:
            store.levels()
            return other.name not in names_of(path)

        wait_for(is_clean, "the names of the dead core to go", DEAD_S + 8)
        assert store.get("theirs") == b"x" * 100_000
        assert store._registration.others() == []
        assert store.check() == []
    with opened(path, THERE) as store:
        assert store.file_name("a").startswith("0.")


@pytest.mark.requirement("CIB-30")
def test_many_dead_owners_take_one_waiting_period(path: Path) -> None:
    """The first core of the next kernel is free once all of them are known to be dead."""
    with ExitStack() as stack:
        stack.enter_context(opened(path, **OPTIONS)).close()
        dead = [stack.enter_context(Kernel(path)) for _ in range(4)]
        for other in dead:
            other.process.kill()
            other.process.wait()
        before = os.times().elapsed
        with opened(path) as store:
            assert os.times().elapsed - before < 3 * DEAD_S  # not once for each of them
            assert store.file_name("a").startswith("0.")
            assert names_of(path) == []


@pytest.mark.requirement("CIB-30")
def test_a_process_that_stood_still_ends_itself(path: Path) -> None:
    with opened(path, **OPTIONS) as store, Kernel(path) as other:
        other.process.send_signal(signal.SIGSTOP)
        process = Path(f"/proc/{other.process.pid}")
        wait_for(lambda: fields_of(process)[0] == "T", "it to stop")

        def is_clean() -> bool:
            store.levels()
            return other.name not in names_of(path)

        wait_for(is_clean, "the names of the stopped core to go", DEAD_S + 8)
        other.process.send_signal(signal.SIGCONT)
        _, said = other.process.communicate(timeout=20)
        assert other.process.returncode == 1
        assert "stood still for so long" in said
        assert store.check() == []


def test_a_core_belongs_to_one_kernel(path: Path) -> None:
    with opened(path, **OPTIONS, core="2") as store:
        with opened(path, HERE, core="2") as same:
            assert same.file_name("a") == store.file_name("a")
            same.put("a", CONTENT)
            assert store.usage().object_count == 1
        with pytest.raises(StoreSpecError, match="processes of another kernel use this core"):
            opened(path, THERE, core="2")
        assert store.get("a") == CONTENT


@pytest.mark.requirement("CIB-21")
def test_programs_open_places_in_an_image_of_several_kernels(path: Path) -> None:
    with opened(path, 0, **OPTIONS) as store:
        with store.begin("a") as writer:
            with attachments.open_draft(writer.mapped_path or "") as file:
                file.reserve(len(CONTENT))
                file.mapped(len(CONTENT), writable=True)[:] = CONTENT
                file.set_written(len(CONTENT))
                file.commit()
            writer.commit()
        with store.open("a") as reader:
            place = reader.place or ""
        assert str(path) not in place
        script = "import sys; from ciel.scc import attachments as a; "
        script += "sys.stdout.buffer.write(a.content_of(a.open_file(sys.argv[1])))"
        found = subprocess.run(
            [sys.executable, "-c", script, place], stdout=subprocess.PIPE, check=True
        )
        assert found.stdout == CONTENT
        foreign = re.sub(r":(\d+):([\w-]+/)", r":1\1:\2", place)
        with pytest.raises(NoPlaceError, match="not on this host"):
            attachments.open_file(foreign)


@pytest.mark.requirement("CIB-30")
def test_no_lock_of_a_kernel_guards_the_file(path: Path, tmp_path: Path) -> None:
    """Neither opening, nor changing, nor sweeping the image locks the file."""
    script = f"""
from ciel.scc.store import open_cores
options = {OPTIONS | {"path": str(path)}!r}
with open_cores(options, kernel=1) as one, open_cores(options, kernel=2) as other:
    one.put("a", bytes(3_000_000))
    other.discover("a")
    other.levels()
"""
    trace = tmp_path / "trace"
    words: list[str | Path] = [
        "strace",
        "-f",
        "-y",
        "-e",
        "trace=flock,fcntl",
        "-o",
        trace,
        sys.executable,
        "-c",
    ]
    subprocess.run([*words, script], check=True)
    calls = trace.read_text().splitlines()
    locks = [line for line in calls if "flock(" in line or "LK" in line]
    assert locks  # leases of directories, which each kernel has for itself
    assert [line for line in locks if f"<{path}>" in line] == []


# --- which kernels --------------------------------------------------------------------------------


def test_an_image_for_one_kernel_is_refused_by_another_one(path: Path) -> None:
    with opened(path, HERE, capacity="16MiB", cores="4") as store:
        assert store.kernels == "shared"
        store.put("a", CONTENT)
        with opened(path, HERE) as same:
            assert same.discover("a") is not None
        with pytest.raises(StoreSpecError, match="made for one kernel, and this is another one"):
            opened(path, THERE)
        with pytest.raises(StoreSpecError, match="was made for kernels=shared; leave this out"):
            opened(path, HERE, kernels="separate")


def test_names_in_the_image_of_one_kernel_do_not_outlive_their_process(path: Path) -> None:
    opened(path, THERE, capacity="16MiB").close()
    with Kernel(path) as other:
        other.process.kill()
        other.process.wait()
        assert names_of_shared(path) == [other.name]
        with opened(path, THERE) as store:
            assert names_of_shared(path) == []
            assert store.usage().used_bytes == 0


def names_of_shared(path: Path) -> list[str]:
    with Image.on(Device(path, kernel=THERE)) as image:
        return [name for name, _ in image.names()]


def test_memory_of_devices_may_have_other_kernels(path: Path) -> None:
    with open(path, "rb") as file:
        assert not may_have_other_kernels(file.fileno())
    with open("/sys/kernel/mm/transparent_hugepage/enabled", "rb") as file:
        assert may_have_other_kernels(file.fileno())


@pytest.mark.parametrize("options, told", [
    ({"path": "FILE"}, "there is no image in the file yet; add capacity=SIZE"),
    ({"path": "FILE", "capacity": "1GiB"}, "ask for less capacity"),
    ({"path": "FILE", "instance": "a"}, "leave this out"),
    ({"path": "relative"}, "begins with /"),
    ({"path": "/dev/null", "capacity": "1MiB"}, "not a file"),
    ({"kernels": "separate"}, "add path=FILE"),
    ({"path": "FILE", "kernels": "all"}, "expected shared or separate"),
])  # fmt: skip
def test_options_that_make_no_sense_are_explained(
    path: Path, options: dict[str, str], told: str
) -> None:
    given = {name: str(path) if value == "FILE" else value for name, value in options.items()}
    with pytest.raises(StoreSpecError, match=told):
        open_cores(given)
    assert path.read_bytes()[:4096] == bytes(4096)


def test_an_image_is_not_made_over_other_data(path: Path) -> None:
    path.write_bytes(b"something else" + bytes(FILE_BYTES))
    with pytest.raises(StoreSpecError, match="the file holds other data"):
        opened(path, **OPTIONS)
    assert path.read_bytes().startswith(b"something else")


def test_options_that_differ_from_the_image_are_named(path: Path) -> None:
    with opened(path, **OPTIONS), pytest.raises(StoreSpecError, match="its cores is 4, not 8"):
        opened(path, THERE, cores="8")


@pytest.mark.requirement("CIB-21")
def test_kernels_that_start_at_the_same_time_make_one_image(path: Path) -> None:
    script = f"""
import sys
from ciel.scc.store import open_cores
sys.stdin.read()
with open_cores({OPTIONS | {"path": str(path)}!r}, kernel=int(sys.argv[1])) as store:
    store.put(sys.argv[1], b"x")
"""
    words = [sys.executable, "-c", script]
    started = [
        subprocess.Popen([*words, str(kernel)], stdin=subprocess.PIPE) for kernel in range(1, 5)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    with ExitStack() as stack:
        for process in started:
            stack.enter_context(process)
    assert [process.returncode for process in started] == [0] * 4
    with Image.on(Device(path)) as image:
        assert image.check() == []


def test_workers_of_a_cluster_take_free_cores_of_the_file(path: Path) -> None:
    options = {"path": str(path), "capacity": "16MiB"}
    KIND.check(options)
    workers = KIND.of_workers(options, 2)
    assert workers.of(0, ["a", "b"]) == workers.of(1, ["a", "b"]) == options
    assert [left.path for left in workers.left(0, ["a"])] == [
        f"/dev/shm/ciel-scc-{instance_of(path)}"
    ]
