"""Where a worker keeps its files, and what happens when there is no more room for them."""

import re
import subprocess
from collections.abc import Iterator

import pytest

from ciel.testing.homes import HandCluster, Home, wait_for
from ciel.testing.mounts import on_mount


def test_a_spool_may_be_named_from_where_the_worker_is_started(
    home: Home, hand_cluster: HandCluster
) -> None:
    for worker in hand_cluster.workers:
        worker.terminate()
        worker.communicate(timeout=20)
    hand_cluster.start_worker("--spool", "my-spool")
    done = home.run("ciel", "submit", "--", "sh", "-c", "echo found; head -c 5000 /dev/zero")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("found\n")
    assert (home.path / "my-spool" / "store").is_dir()


SMALL = ["-t", "tmpfs", "-o", "size=16m,nr_inodes=200", "none"]


@pytest.fixture
def small_spool(home: Home, hand_cluster: HandCluster) -> Iterator[str]:
    """The spool of the only worker: a file system of 16 MiB that nobody else sees."""
    for worker in hand_cluster.workers:
        worker.terminate()
        worker.communicate(timeout=20)
    place, log = home.path / "small", home.path / "small.log"
    place.mkdir()
    options = ["--access", str(hand_cluster.access), "--slots", "1", "--log", str(log)]
    spool = ["--spool", str(place / "spool")]
    hand_cluster.workers.append(
        home.start(*on_mount(SMALL, place, ["ciel-worker", *options, *spool]))
    )
    wait_for(lambda: log.exists() and "joined the master" in log.read_text(), "a worker")
    yield str(place)
    assert "Traceback" not in log.read_text()


FAIL = "head -c {size} /dev/zero >left && exit 3"


def test_what_failed_programs_left_does_not_stop_others(home: Home, small_spool: str) -> None:
    for _ in range(5):
        done = home.run("ciel", "submit", "--", "sh", "-c", FAIL.format(size="5M"))
        assert "ended with exit status 3" in done.stderr, done.stderr
    done = home.run("ciel", "submit", "--", "head", "-c", "5M", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 5 << 20), done.stderr


def test_what_failed_programs_left_gives_way_when_an_output_needs_the_room(
    home: Home, small_spool: str
) -> None:
    done = home.run("ciel", "submit", "--", "sh", "-c", FAIL.format(size="6M"))
    assert "its files are kept in" in done.stderr
    done = home.run("ciel", "submit", "--retries", "1", "--", "head", "-c", "12M", "/dev/zero")
    assert (done.returncode, len(done.stdout)) == (0, 12 << 20), done.stderr


FULL = {
    "bytes": (
        "head -c 100M /dev/zero >{place}/fill; exit 0",
        "its files are not kept: they take N bytes, more than the disk has left\n",
    ),
    "files": (
        "mkdir {place}/fill; cd {place}/fill; seq 300 | xargs touch; exit 0",
        "its standard error ends:\n  touch: cannot touch 'more': No space left on device\n"
        "its files could not be kept: No space left on device\n",
    ),
}


@pytest.mark.parametrize("fill, told", FULL.values(), ids=FULL)
def test_a_worker_goes_on_when_a_full_disk_has_room_again(
    home: Home, small_spool: str, fill: str, told: str
) -> None:
    """What fills it is not ours, hence nothing that we could remove."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return home.run("ciel", "submit", "--", "sh", "-c", script)

    script = "touch more && head -c 1M /dev/zero"
    assert run(fill.format(place=small_spool)).returncode == 0
    for _ in range(3):
        done = run(script)
        said = re.sub(
            "worker [0-9a-f]{16}", "worker W", re.sub("take [0-9]+", "take N", done.stderr)
        )
        assert (done.returncode, said) == (
            1,
            f"ciel: sh -c '{script}' ended with exit status 1 on worker W\n{told}",
        )
    assert run(f"rm -r {small_spool}/fill").returncode == 0
    done = run(script)
    assert (done.returncode, len(done.stdout)) == (0, 1 << 20), done.stderr
