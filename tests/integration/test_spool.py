"""Tests the work directory of a worker, and full disks."""

import http.client
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.client import Client
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete
from ciel.storage.files import open_disk
from ciel.testing.homes import WORKER_ID, HandCluster, Home, wait_for
from ciel_tests.clusters.mounts import on_mount


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
    "bytes": (
        "head -c 100M /dev/zero >{place}/fill; exit 0",
        "its files were not retained: they take N bytes, more than the free space on the disk\n",
    ),
    "files": (
        "mkdir {place}/fill; cd {place}/fill; seq 300 | xargs touch; exit 0",
        "its standard error ends:\n  touch: cannot touch 'more': No space left on device\n"
        "its files could not be retained: No space left on device\n",
    ),
}


@pytest.mark.parametrize("fill, told", FULL.values(), ids=FULL)
def test_a_worker_goes_on_when_a_full_disk_has_room_again(
    home: Home, small_spool: str, fill: str, told: str
) -> None:
    """Foreign files fill the disk, which the worker cannot remove."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return home.run("ciel", "submit", "--scratch", "sh", "-c", script)

    script = "touch more && head -c 1M /dev/zero"
    assert run(fill.format(place=small_spool)).returncode == 0
    for _ in range(3):
        done = run(script)
        said = re.sub(WORKER_ID, "W", re.sub("take [0-9]+", "take N", done.stderr))
        assert (done.returncode, said) == (
            1,
            f"ciel: sh -c '{script}' ended with exit status 1 on worker W\n{told}",
        )
    assert run(f"rm -r {small_spool}/fill").returncode == 0
    done = run(script)
    assert (done.returncode, len(done.stdout)) == (0, 1 << 20), done.stderr


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
