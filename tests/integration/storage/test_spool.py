"""Tests the work directory of a worker, and full disks."""

import http.client
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ciel.client import Client
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete
from ciel.storage.files import open_disk
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.clusters.mounts import on_mount

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(home: Home) -> Iterator[HandCluster]:
    """Start a master; the test starts the only worker."""
    cluster = HandCluster.start(home, 0)
    yield cluster
    cluster.stop()


def test_the_path_of_a_work_directory_is_relative_to_the_current_directory(
    home: Home, cluster: HandCluster
) -> None:
    cluster.start_worker("--spool", "my-spool")
    done = home.run("ciel", "submit", "--", "sh", "-c", "echo found; head -c 5000 /dev/zero")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("found\n")
    assert (home.path / "my-spool" / "store").is_dir()


@pytest.mark.parametrize("store", ["disk", "shm"])
def test_a_work_directory_belongs_to_one_worker_at_a_time(
    home: Home, cluster: HandCluster, store: str
) -> None:
    """This holds whichever stores the workers have."""
    first = cluster.start_worker("--spool", "my-spool")
    access = ("--access", str(cluster.access))
    done = home.run("ciel-worker", *access, "--store", store, "--spool", "my-spool")
    said = f"process {first.pid} already uses this spool, and only one worker may"
    assert done.returncode == 2
    assert f"ciel-worker: '{home.path}/my-spool': {said}; name another directory\n" in done.stderr
    first.kill()
    first.wait()
    cluster.start_worker("--spool", "my-spool")


SMALL = ["-t", "tmpfs", "-o", "size=16m,nr_inodes=200", "none"]


@pytest.fixture
def small_spool(home: Home, cluster: HandCluster) -> Iterator[str]:
    """Start the only worker with a work directory on a private file system of 16 MiB."""
    place, log = home.path / "small", home.path / "small.log"
    place.mkdir()
    options = ["--access", str(cluster.access), "--slots", "1", "--log", str(log)]
    spool = ["--store", "disk", "--spool", str(place / "spool")]
    cluster.workers.append(home.start(*on_mount(SMALL, place, ["ciel-worker", *options, *spool])))
    wait_for(lambda: log.exists() and "joined the master" in log.read_text(), "a worker")
    yield str(place)
    assert "Traceback" not in log.read_text()


FAIL = "head -c {size} /dev/zero >left && exit 3"


def test_kept_files_of_failed_programs_do_not_block_others(home: Home, small_spool: str) -> None:
    for _ in range(5):
        done = home.run("ciel", "submit", "--", "sh", "-c", FAIL.format(size="5M"))
        assert "ended with exit status 3" in done.stderr, done.stderr
    done = home.run("ciel", "submit", "--", "head", "-c", "5M", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 5 << 20), done.stderr


def test_kept_files_of_failed_programs_are_deleted_when_an_output_needs_room(
    home: Home, small_spool: str
) -> None:
    done = home.run("ciel", "submit", "--", "sh", "-c", FAIL.format(size="6M"))
    assert "its files are kept in" in done.stderr
    done = home.run("ciel", "submit", "--retries", "1", "--", "head", "-c", "12M", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 12 << 20), done.stderr


FULL = {
    "bytes": ("head -c 100M /dev/zero >{place}/fill; exit 0", "head: error writing", "0 B free"),
    "files": (
        "mkdir {place}/fill; cd {place}/fill; seq 300 | xargs touch; exit 0",
        "touch: cannot touch 'more'",
        "free, no more files",
    ),
}


@pytest.mark.parametrize("fill, said, free", FULL.values(), ids=FULL)
def test_a_worker_goes_on_when_a_full_disk_has_room_again(
    home: Home, small_spool: str, fill: str, said: str, free: str
) -> None:
    """Foreign files fill the disk, which the worker cannot remove."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return home.run("ciel", "submit", "--scratch", "sh", "-c", script)

    script = "touch more && head -c 1M /dev/zero"
    assert run(fill.format(place=small_spool)).returncode == 0
    for _ in range(3):
        done = run(script)
        assert done.returncode == 1
        first, second, third = done.stderr.splitlines()
        assert first.startswith(f"ciel: sh -c '{script}' ended with exit status 1 on worker ")
        assert f"the device at {small_spool} (16 MiB in all, " in first
        assert free in first
        assert second == "the end of its standard error:"
        assert third.startswith(f"  {said}")
    assert run(f"rm -r {small_spool}/fill").returncode == 0
    done = run(script)
    assert (done.returncode, len(done.stdout)) == (0, 1 << 20), done.stderr


TINY = ["-t", "tmpfs", "-o", "size=8m", "none"]
ENDINGS = {"reported": "head -c 12M /dev/zero", "ignored": "head -c 12M /dev/zero 2>&1; exit 0"}


class FullDisk:
    """A cluster whose first worker has a work directory on a file system of 8 MiB."""

    def __init__(self, home: Home, cluster: HandCluster) -> None:
        self.home, self.cluster = home, cluster
        self.place, self._log = home.path / "tiny", home.path / "tiny.log"
        self.place.mkdir()
        options = ["--access", str(cluster.access), "--slots", "1", "--log", str(self._log)]
        spool = ["--store", "disk", "--spool", str(self.place / "spool")]
        self.worker = home.start(*on_mount(TINY, self.place, ["ciel-worker", *options, *spool]))
        cluster.workers.append(self.worker)
        wait_for(lambda: "joined the master" in self.log(), "the small worker")

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def seen(self, name: str) -> Path:
        """Return the path by which this process sees a file of the small file system."""
        return Path(f"/proc/{self.worker.pid}/root{self.place}/{name}")

    def objects(self) -> list[str]:
        return sorted(path.name for path in self.seen("spool/store/objects").iterdir())

    def run(self, script: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.home.run("ciel", "submit", "--scratch", *options, "--", "sh", "-c", script)

    def where(self) -> str:
        """Return the work directory of the worker that runs the next task."""
        return self.run("pwd").stdout.partition("/scratch/")[0]


@pytest.fixture
def full_disk(home: Home, cluster: HandCluster) -> FullDisk:
    return FullDisk(home, cluster)


@pytest.mark.parametrize("ending", ["reported", "ignored"])
def test_an_output_that_does_not_fit_on_the_disk_is_named(full_disk: FullDisk, ending: str) -> None:
    """Whether or not the program reports it."""
    done = full_disk.run(f"echo begun >&2; {ENDINGS[ending]}", "--json")
    failure = json.loads(done.stdout.splitlines()[0])
    assert failure["reason"] == "NO_SPACE"
    assert f"the device at {full_disk.place} (8 MiB in all, " in failure["story"]
    assert "the end of its standard error:\n  begun" in failure["story"]
    assert ("No space left on device" in failure["story"]) == (ending == "reported")
    assert full_disk.objects() == []
    done = full_disk.run("head -c 5M /dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 5 << 20), done.stderr


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_task_that_found_no_space_runs_on_another_worker(
    full_disk: FullDisk, ending: str
) -> None:
    runs = full_disk.home.path / "runs"
    assert full_disk.where() == str(full_disk.place / "spool")
    full_disk.cluster.start_worker("--spool", "large", "--store", "disk")
    script = f"pwd >>{runs}; test -d {full_disk.place}/spool || sleep 0; {ENDINGS[ending]}"
    for _ in range(2):
        done = full_disk.run(script)
        assert (done.returncode, len(done.stdout)) == (0, 12 << 20), done.stderr
    places = [line.partition("/scratch/")[0] for line in runs.read_text().split()]
    assert str(full_disk.place / "spool") in places
    assert full_disk.objects() == []


def test_a_full_worker_gets_no_tasks_until_it_has_room_again(full_disk: FullDisk) -> None:
    full_disk.cluster.start_worker("--spool", "large", "--store", "disk")
    own, other = str(full_disk.place / "spool"), str(full_disk.home.path / "large")
    wait_for(lambda: full_disk.where() == own, "a task on the small worker")
    full_disk.seen("fill").write_bytes(bytes(64 << 10))
    with suppress(OSError), open(full_disk.seen("fill"), "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    wait_for(lambda: "is full, so tasks run here only if" in full_disk.log(), "a report")
    assert {full_disk.where() for _ in range(4)} == {other}
    full_disk.seen("fill").unlink()
    freed_s = time.monotonic()
    wait_for(lambda: "has room again" in full_disk.log(), "a report")
    wait_for(lambda: full_disk.where() == own, "a task on the small worker")
    assert time.monotonic() - freed_s < 20  # usually 1 s


HUGE_BYTES = 64 << 30
READ_BYTES = 64 << 20  # read from the whole object before the reader stops


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process ever had in use."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


def test_an_object_larger_than_memory_can_be_read_in_place_in_parts_and_as_a_whole(
    home: Home, cluster: HandCluster
) -> None:
    """The object is a sparse file with content only at its end."""
    with open_disk({}, home.path / "spool" / "store") as store, store.begin("huge") as writer:
        assert writer.path is not None
        with open(writer.path, "r+b") as file:
            file.seek(HUGE_BYTES - 4)
            file.write(b"end\n")
        assert writer.commit().size_bytes == HUGE_BYTES
    worker = cluster.start_worker("--store", "disk", "--spool", "spool")
    (netloc,) = cluster.netlocs()
    before_bytes = peak_bytes(worker.pid)

    huge = Concrete(ObjectId("huge"), HUGE_BYTES, frozenset((netloc,)))
    with Client(environ=home.environ) as client, client.job("huge") as job:
        assert job.read(job.run(["tail", "-c", "4"], inputs=[huge])) == b"end\n"

    def ask(method: str, part: str = "") -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {cluster.key}", "Connection": "close"}
        if part:
            headers["Range"] = f"bytes={part}"
        connection = http.client.HTTPConnection(netloc, timeout=10)
        connection.request(method, "/data/huge", headers=headers)
        return connection.getresponse()

    assert ask("HEAD").headers["Content-Length"] == str(HUGE_BYTES)
    with ask("GET", "-4") as part:
        span = f"bytes {HUGE_BYTES - 4}-{HUGE_BYTES - 1}/{HUGE_BYTES}"
        assert part.headers["Content-Range"] == span
        assert part.read() == b"end\n"
    with ask("GET", f"{HUGE_BYTES // 2}-{HUGE_BYTES // 2 + 99_999}") as part:
        assert part.read() == bytes(100_000)
    with ask("GET") as whole:
        assert whole.headers["Content-Length"] == str(HUGE_BYTES)
        assert sum(len(whole.read(1 << 20)) for _ in range(READ_BYTES >> 20)) == READ_BYTES
    assert peak_bytes(worker.pid) - before_bytes < READ_BYTES // 8
