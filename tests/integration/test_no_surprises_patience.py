"""Outages that end: daemons that are stopped for a while, cables that are pulled out and put back.
Programs go on meanwhile and run once; what has ended for good is noticed at once.

Each run of a program appends a byte to a file, so that runs are counted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from ciel.core.events import LOST_AFTER_S
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel.testing.hosts import Hosts


def submit(home: Home, *argv: str, elements: int = 1) -> subprocess.Popen[str]:
    """Start a job of programs; each of its elements runs the command."""
    array = ["--array", f"1-{elements}"] if elements > 1 else []
    return home.start("ciel", "submit", *array, "--", *argv)


def program(home: Home, name: str, sleep_s: float) -> list[str]:
    """Return a command that notes each of its runs in a file."""
    place = home.path / name
    script = (
        f"echo $CIEL_WORKER >{place}.at; printf x >>{place}; sleep {sleep_s}; echo {name} is done"
    )
    return ["sh", "-c", script]


def runs(home: Home, name: str) -> int:
    """Return how often a program was started."""
    path = home.path / name
    return len(path.read_text()) if path.exists() else 0


def await_run(home: Home, name: str) -> None:
    wait_for(lambda: runs(home, name), f"the start of {name}")


def workers(home: Home) -> list[dict[str, object]]:
    done = home.run("ciel", "worker", "list", "--json")
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def pause(process: subprocess.Popen[str], pause_s: float) -> None:
    """Stop a process for a while."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(pause_s)
    process.send_signal(signal.SIGCONT)


def expect_done(job: subprocess.Popen[str], name: str) -> None:
    out, complaints = job.communicate(timeout=60)
    assert (job.returncode, out) == (0, f"{name} is done\n"), complaints


def test_c1_a_worker_that_stands_still_is_suspected_and_what_it_ran_counts(home: Home) -> None:
    cluster = HandCluster.start(home)
    job = submit(home, *program(home, "a", 1.0))
    await_run(home, "a")
    at = (home.path / "a.at").read_text().strip()
    busy = cluster.workers[0 if at in cluster.log("worker1") else 1]
    busy.send_signal(signal.SIGSTOP)
    wait_for(lambda: any(worker["suspicion"] for worker in workers(home)), "a suspicion")
    told = home.run("ciel", "status").stdout
    assert told.count("(suspected)") == 1, told
    other = submit(home, *program(home, "b", 0.1))  # is not sent to the one that is suspected
    expect_done(other, "b")
    busy.send_signal(signal.SIGCONT)
    expect_done(job, "a")
    assert (runs(home, "a"), runs(home, "b")) == (1, 1)
    assert not any(worker["suspicion"] for worker in workers(home))
    cluster.stop()


def test_c1_a_worker_that_was_killed_is_not_waited_for(home: Home) -> None:
    cluster = HandCluster.start(home, workers=1)
    job = submit(home, *program(home, "a", 2.0))
    await_run(home, "a")
    begun_s = time.monotonic()
    cluster.workers[0].kill()
    cluster.start_worker()
    wait_for(lambda: runs(home, "a") == 2, "another run")
    assert time.monotonic() - begun_s < 15  # far below the time that a silent worker is given
    expect_done(job, "a")
    cluster.workers.pop(0).communicate()
    cluster.stop()


def test_c1_a_worker_started_again_in_the_same_directory_takes_the_place_of_the_first(
    home: Home,
) -> None:
    cluster = HandCluster.start(home, 1, "--spool", "spool")
    [before] = workers(home)
    cluster.workers[0].kill()
    cluster.start_worker("--spool", "spool")
    cluster.workers.pop(0).communicate()
    [after] = workers(home)
    assert before["worker"] != after["worker"]
    cluster.stop()


def test_g3_a_master_that_stands_still_ends_neither_programs_nor_workers(home: Home) -> None:
    cluster = HandCluster.start(home)
    first = submit(home, *program(home, "a", 4.0))
    second = submit(home, *program(home, "b", 11.0))
    for name in ("a", "b"):
        await_run(home, name)
    pause(cluster.master, 3 * LOST_AFTER_S)
    expect_done(first, "a")
    expect_done(second, "b")
    assert (runs(home, "a"), runs(home, "b")) == (1, 1)
    assert all(worker.poll() is None for worker in cluster.workers)
    assert len(workers(home)) == 2
    cluster.stop()


def test_g3_a_worker_with_a_wrong_key_ends_at_once(home: Home) -> None:
    cluster = HandCluster.start(home, workers=0)
    access = json.loads(cluster.access.read_text())
    wrong = home.path / "wrong.json"
    wrong.write_text(json.dumps({**access, "key": access["key"][::-1]}))
    wrong.chmod(0o600)
    done = home.run("ciel-worker", "--access", str(wrong))
    assert done.returncode == 3
    assert "key" in done.stderr
    cluster.stop()


def test_c1_programs_go_on_while_a_cable_is_out(tmp_path: Path) -> None:
    with Hosts(tmp_path) as (here, there):
        master = here.start(
            "ciel-master", "--listen", f"{here.address}:0", "--new-key", "--log", "master.log"
        )
        wait_for(lambda: [*here.path.glob("state/ciel/*/access.json")], "the access file")
        (access,) = here.path.glob("state/ciel/*/access.json")
        (there.path / "carried.json").write_text(access.read_text())
        (there.path / "carried.json").chmod(0o600)
        here.environ["CIEL_ACCESS"] = str(here.inside / access.relative_to(here.path))
        there.start(
            "ciel-worker", "--access", "carried.json", "--slots", "1", "--log", "worker.log",
            "--listen", ":0", "--advertise", f"{there.address}:0",
        )  # fmt: skip
        wait_for(lambda: len(workers(here)) == 1, "the worker")
        job = here.start(
            "ciel",
            "submit",
            "--",
            "sh",
            "-c",
            f"printf x >>{there.inside}/a; sleep 5; echo a is done",
        )
        await_run(there, "a")
        there.set_link(up=False)
        wait_for(lambda: workers(here)[0]["suspicion"], "a suspicion")
        time.sleep(2 * LOST_AFTER_S)
        there.set_link(up=True)
        expect_done(job, "a")
        assert runs(there, "a") == 1
        assert master.poll() is None
