"""Tests temporary outages: daemons that are stopped for a while, and network cables that are
unplugged.

Programs go on meanwhile and run once; the master notices permanent ends at once. Each run of a
program appends a byte to a file, so that runs can be counted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ciel.core.events import LOST_AFTER_S
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.clusters.hosts import Hosts


def submit(home: Home, *argv: str, elements: int = 1) -> subprocess.Popen[str]:
    """Start a job of programs; each of its elements runs the command."""
    array = ["--array", f"1-{elements}"] if elements > 1 else []
    return home.start("ciel", "submit", *array, "--", *argv)


def program(home: Home, name: str, sleep_s: float) -> list[str]:
    """Return a command that records each of its runs in a file."""
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


@pytest.mark.slow
def test_a_stopped_worker_is_suspected_and_its_tasks_count(home: Home) -> None:
    cluster = HandCluster.start(home)
    job = submit(home, *program(home, "a", 1.0))
    await_run(home, "a")
    at = (home.path / "a.at").read_text().strip()
    busy = cluster.workers[0 if at in cluster.log("worker1") else 1]
    busy.send_signal(signal.SIGSTOP)
    wait_for(lambda: any(worker["suspicion"] for worker in workers(home)), "a suspicion")
    told = home.run("ciel", "status").stdout
    assert told.count("(suspected)") == 1, told
    other = submit(home, *program(home, "b", 0.1))  # not sent to the suspected worker
    expect_done(other, "b")
    busy.send_signal(signal.SIGCONT)
    expect_done(job, "a")
    assert (runs(home, "a"), runs(home, "b")) == (1, 1)
    assert not any(worker["suspicion"] for worker in workers(home))
    cluster.stop()


@pytest.mark.slow
def test_a_killed_worker_is_declared_dead_at_once(home: Home) -> None:
    cluster = HandCluster.start(home, workers=1)
    job = submit(home, *program(home, "a", 2.0))
    await_run(home, "a")
    cluster.workers[0].kill()
    wait_for(lambda: not workers(home), "the master to know")  # it waits 60 s for a silent worker
    cluster.start_worker()
    wait_for(lambda: runs(home, "a") == 2, "another run")
    expect_done(job, "a")
    cluster.workers.pop(0).communicate()
    cluster.stop()


@pytest.mark.slow
def test_a_worker_restarted_in_the_same_directory_replaces_the_first(
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


@pytest.mark.slow
def test_a_stopped_master_ends_neither_programs_nor_workers(home: Home) -> None:
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


@pytest.mark.slow
def test_a_worker_with_a_wrong_key_ends_at_once(home: Home) -> None:
    cluster = HandCluster.start(home, workers=0)
    access = json.loads(cluster.access.read_text())
    wrong = home.path / "wrong.json"
    wrong.write_text(json.dumps({**access, "key": access["key"][::-1]}))
    wrong.chmod(0o600)
    done = home.run("ciel-worker", "--access", str(wrong))
    assert done.returncode == 3
    assert "key" in done.stderr
    cluster.stop()


@pytest.mark.slow
def test_programs_go_on_while_a_cable_is_unplugged(tmp_path: Path) -> None:
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


# --- ending programs ------------------------------------------------------------------------------

SAVES = (
    "trap 'sleep 1; echo saved >{place}.checkpoint; exit 1' TERM; printf x >{place}; "
    "while :; do sleep 0.1; done"
)


def saving(home: Home, name: str) -> list[str]:
    """Return a program that takes a second to write a checkpoint when it gets SIGTERM."""
    return ["sh", "-c", SAVES.replace("{place}", str(home.path / name))]


def expect_saved(home: Home, name: str) -> None:
    assert (home.path / f"{name}.checkpoint").read_text() == "saved\n"


@pytest.mark.slow
def test_programs_can_write_a_checkpoint_before_they_are_killed(home: Home) -> None:
    cluster = HandCluster.start(home, 1)
    limited = home.run("ciel", "submit", "--timeout", "0.5", "--", *saving(home, "limited"))
    assert "it ran longer than its limit of 0.5 s" in limited.stderr
    expect_saved(home, "limited")
    job = submit(home, *saving(home, "cancelled"))
    await_run(home, "cancelled")
    assert home.run("ciel", "job", "cancel", "last").returncode == 0
    expect_saved(home, "cancelled")
    job.communicate(timeout=20)
    job = submit(home, *saving(home, "left"))
    await_run(home, "left")
    cluster.workers[0].send_signal(signal.SIGTERM)
    cluster.workers[0].communicate(timeout=20)
    expect_saved(home, "left")
    job.kill()
    job.communicate()
    cluster.stop()


@pytest.mark.slow
def test_a_task_can_set_its_grace_period(home: Home) -> None:
    cluster = HandCluster.start(home, 1)
    options = ("--timeout", "0.2", "--kill-grace", "0.2")
    done = home.run("ciel", "submit", *options, "--", *saving(home, "a"))
    assert "was killed by SIGKILL" in done.stderr
    assert not (home.path / "a.checkpoint").exists()
    cluster.stop()


@pytest.mark.slow
def test_ciel_down_and_ctrl_c_give_programs_their_grace_period(home: Home) -> None:
    job = submit(home, *saving(home, "interrupted"))  # on its own temporary cluster
    await_run(home, "interrupted")
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=20)
    expect_saved(home, "interrupted")
    up = home.run("ciel", "up", "--listen", "127.0.0.1:0", "--slots", "1")
    assert up.returncode == 0, up.stderr
    job = submit(home, *saving(home, "down"))
    await_run(home, "down")
    assert home.run("ciel", "down", "--force").returncode == 0
    job.communicate(timeout=20)
    expect_saved(home, "down")


# --- one cluster per host -------------------------------------------------------------------------


@pytest.mark.slow
def test_two_commands_that_start_a_cluster_at_once_start_only_one(home: Home) -> None:
    both = [home.start("ciel", "up", "--listen", "127.0.0.1:0", "--slots", "1") for _ in range(2)]
    said = sorted(each.communicate(timeout=60)[1] for each in both)
    assert [each.returncode for each in both] == [0, 0]
    assert "already up" in said[0], said
    masters = [line for line in home.processes().values() if "ciel.cli.daemons.master" in line]
    assert len(masters) == 1
    assert home.run("ciel", "down").returncode == 0
    wait_for(lambda: not home.processes(), "the end of all")


ELSEWHERE = ("unshare", "-u", "sh", "-c", 'hostname elsewhere; exec "$@"', "sh")


@pytest.mark.slow
def test_a_host_that_shares_the_home_does_not_touch_another_hosts_cluster(home: Home) -> None:
    if subprocess.run([*ELSEWHERE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no host names of their own here")
    up = home.run("ciel", "up", "--listen", "127.0.0.1:0", "--slots", "1")
    assert up.returncode == 0, up.stderr
    for command in ("status", "down"):
        told = home.run(*ELSEWHERE, "ciel", command)
        assert told.returncode == 3
        assert "interrupted" not in told.stderr
    there = home.run(*ELSEWHERE, "ciel", "up", "--listen", "127.0.0.1:0", "--slots", "1")
    assert there.returncode == 0, there.stderr
    assert home.run(*ELSEWHERE, "ciel", "down").returncode == 0
    assert home.run("ciel", "status").returncode == 0
    assert home.run("ciel", "down").returncode == 0
    wait_for(lambda: not home.processes(), "the end of all")


# --- files of ended daemons -----------------------------------------------------------------------


def start_master(home: Home) -> tuple[subprocess.Popen[str], Path]:
    """Start a master at a free port; return its access file, too."""
    state = Path(home.environ["XDG_STATE_HOME"], "ciel")
    before = set(state.glob("localhost@*/access.json"))
    master = home.start("ciel-master", "--listen", "127.0.0.1:0", "--log", str(home.path / "log"))

    def found() -> set[Path]:
        return set(state.glob("localhost@*/access.json")) - before

    wait_for(found, "its access file")
    return master, found().pop()


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize("by_hand", [True, False])
def test_starting_a_master_keeps_only_ten_keys_of_ended_masters(home: Home, by_hand: bool) -> None:
    alive, of_alive = start_master(home)
    state = of_alive.parent.parent
    host = of_alive.parent.name.rpartition("_")[0]
    gone = {"pid": 1 << 22, "pid_start": 1}
    for number in range(14):
        path = state / f"{host}_{number + 1}" / "access.json"
        path.parent.mkdir(mode=0o700)
        path.write_text(json.dumps({**json.loads(of_alive.read_text()), **gone}))
        path.chmod(0o600)
        os.utime(path, (number, number))
    os.utime(of_alive, (0, 0))
    elsewhere = state / "example.org_9" / "access.json"
    shutil.copytree((state / f"{host}_1"), elsewhere.parent)
    if by_hand:
        end(start_master(home)[0])
    else:
        assert home.run("ciel", "up", "--listen", "127.0.0.1:0", "--slots", "1").returncode == 0
        assert home.run("ciel", "down").returncode == 0
    left = [number for number in range(1, 15) if (state / f"{host}_{number}").exists()]
    assert left == list(range(5, 15))
    assert of_alive.exists()
    assert elsewhere.exists()
    end(alive)


@pytest.mark.slow
def test_starting_a_worker_keeps_files_of_only_ten_ended_workers(
    hand_cluster: HandCluster, tmp_path: Path
) -> None:
    home = hand_cluster.home
    temporary = tmp_path / "temporary"
    for number in range(14):
        kept = temporary / f"ciel-worker-{number}" / "kept" / "attempt"
        kept.mkdir(parents=True)
        os.utime(kept.parent.parent, (number, number))
    lives = temporary / "ciel-worker-lives"
    (lives / "kept").mkdir(parents=True)
    (lives / "owner").touch()
    os.utime(lives, (0, 0))
    home.environ["TMPDIR"] = str(temporary)
    hand_cluster.start_worker()
    left = [number for number in range(14) if (temporary / f"ciel-worker-{number}").exists()]
    assert left == list(range(4, 14))
    assert lives.exists()
