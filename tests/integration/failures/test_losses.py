"""Kills, wipes, stops and poisons workers: a job repeats only the lost work.

Half of the results are larger than 64 KiB, so that they live in stores. Each run of a program adds
a byte to a file, so that runs can be counted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ciel.client import Client
from ciel.client.jobs import Job
from ciel.core.events import RESTART_GRACE_S
from ciel.core.refs import Failure, Future, Value
from ciel.core.tasks import Needs
from ciel.testing.homes import HandCluster, Home, fields_of, wait_for

LARGE: Final = 70_000
LEAVES: Final = 30
UNREPORTED: Final = 2  # a task that ended in the last hundredth of a second, and the running one
LEAF: Final = 'printf x >>{runs}/{number}; sleep 0.03; head -c {size} /dev/zero | tr "\\0" {letter}'


def size_of(number: int) -> int:
    return 2 if number & 2 else LARGE


def letter_of(number: int) -> str:
    return chr(ord("a") + number % 26)


class Lab:
    """A cluster that starts without workers; the work directory of each worker has its number."""

    def __init__(self, home: Home) -> None:
        self.home = home
        patience = ("--suspect-after", "3", "--worker-timeout", "3")
        self.cluster = HandCluster.start(home, workers=0, of_master=patience)
        self.runs = home.path / "runs"
        self.runs.mkdir()

    def start(self, number: int, *options: str) -> subprocess.Popen[str]:
        own = ("--spool", f"spool{number}", "--store", "disk")  # a store that outlives its worker
        return self.cluster.start_worker(*own, *options)

    def kill(self, worker: subprocess.Popen[str]) -> None:
        worker.kill()
        worker.communicate(timeout=20)

    def stored(self, number: int) -> list[Path]:
        return [*(self.home.path / f"spool{number}" / "store" / "objects").glob("*")]

    def leaf(self, job: Job, number: int) -> Future:
        """Add a task with a unique result; two of every four are large."""
        size, letter = size_of(number), letter_of(number)
        command = LEAF.format(runs=self.runs, number=number, size=size, letter=letter)
        return job.run(["sh", "-c", command])

    def count(self) -> list[int]:
        """Return how often each leaf has run."""
        return [self.runs.joinpath(str(number)).stat().st_size for number in range(LEAVES)]

    def await_runs(self, count: int) -> None:
        wait_for(lambda: len([*self.runs.iterdir()]) >= count, f"{count} programs")

    def expect_right(self, printed: bytes) -> None:
        whole = "".join([letter_of(number) * size_of(number) for number in range(LEAVES)])
        assert printed.split()[0].decode() == hashlib.sha256(whole.encode()).hexdigest()


@pytest.fixture
def lab(home: Home) -> Iterator[Lab]:
    lab = Lab(home)
    yield lab
    lab.cluster.stop()


@pytest.fixture
def client(lab: Lab) -> Iterator[Client]:
    with Client(access=str(lab.cluster.access)) as client:
        yield client


# --- killed ---------------------------------------------------------------------------------------


@pytest.mark.requirement("CIB-4")
def test_a_killed_worker_costs_its_running_tasks_and_its_only_copies(
    lab: Lab, client: Client
) -> None:
    first = lab.start(1)
    lab.start(2)
    with client.job("sum") as job:
        total = job.run(["sha256sum"], inputs=[lab.leaf(job, number) for number in range(LEAVES)])
        job.want([total])
        lab.await_runs(LEAVES // 2)
        wait_for(lambda: len(lab.stored(1)) > 2, "three objects of the first worker")
        lab.kill(first)
        lost = len(lab.stored(1))
        lab.expect_right(job.read(total, timeout_s=40))
    runs = lab.count()
    assert lost <= sum(runs) - LEAVES <= lost + UNREPORTED
    small = [count for number, count in enumerate(runs) if size_of(number) < LARGE]
    assert sum(small) - len(small) <= UNREPORTED


@pytest.mark.slow
@pytest.mark.parametrize("wiped", [False, True])
def test_results_of_a_worker_are_available_when_it_is_back_unless_wiped(
    lab: Lab, client: Client, wiped: bool
) -> None:
    worker = lab.start(1)
    with client.job("sum") as job:
        total = job.run(["sha256sum"], inputs=[lab.leaf(job, number) for number in range(LEAVES)])
        job.want([total])
        lab.await_runs(LEAVES // 2)
        lab.kill(worker)
        stored = len(lab.stored(1))
        if wiped:
            shutil.rmtree(lab.home.path / "spool1")
        lab.start(1)
        lab.expect_right(job.read(total, timeout_s=40))
    lost = stored if wiped else 0
    assert stored > 4
    assert lost <= sum(lab.count()) - LEAVES <= lost + UNREPORTED


KILLS: Final = 4


@pytest.mark.slow
def test_workers_that_are_killed_and_started_again_cost_only_their_running_tasks(
    lab: Lab, client: Client
) -> None:
    """A host that needs too long to start a worker may recompute what the worker has stored."""
    workers = {number: lab.start(number) for number in (1, 2)}
    allowed = 0
    with client.job("sum") as job:
        total = job.run(["sha256sum"], inputs=[lab.leaf(job, number) for number in range(LEAVES)])
        job.want([total])
        for kill in range(KILLS):
            lab.await_runs(LEAVES * (kill + 1) // (KILLS + 2))
            number = 1 + kill % 2
            killed_at_s = time.monotonic()
            lab.kill(workers[number])
            stored = len(lab.stored(number))
            workers[number] = lab.start(number)
            is_late = time.monotonic() - killed_at_s > RESTART_GRACE_S
            allowed += UNREPORTED + (stored if is_late else 0)
        lab.expect_right(job.read(total, timeout_s=40))
    assert sum(lab.count()) - LEAVES <= allowed


LONG: Final = 200


@pytest.mark.requirement("CIB-4")
@pytest.mark.slow
def test_a_long_chain_is_recomputed_when_all_its_objects_were_deleted(
    lab: Lab, client: Client
) -> None:
    lab.start(1)
    link = f"printf x >>{lab.runs}/links; cat; echo link"
    with client.job("chain", keep=True) as job:
        last = job.run(["sh", "-c", f"head -c {LARGE} /dev/zero"])
        for _ in range(LONG):
            last = job.run(["sh", "-c", link], inputs=[last])
        whole = job.read(last, timeout_s=40)
        stored = lab.stored(1)
        assert len(stored) == LONG + 1
        for path in stored:
            path.unlink()
        again = job.run(["cat"], inputs=[last])
        assert job.read(again, timeout_s=40) == whole
    assert (lab.runs / "links").stat().st_size == 2 * LONG


# --- poisoned -------------------------------------------------------------------------------------

POISON: Final = 'printf x >>{runs}/poison; kill -9 "$(cut -d" " -f4 /proc/$PPID/stat)"; sleep 60'


class Supervisor(threading.Thread):
    """Restarts a worker whenever one is killed."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab
        self._over = threading.Event()
        self.died = 0

    def run(self) -> None:
        alive = {number: self._lab.start(number) for number in (1, 2)}
        while not self._over.wait(0.02):
            for number, worker in alive.items():
                if worker.poll() is not None:
                    self.died += 1
                    alive[number] = self._lab.start(number)

    def end(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.slow
def test_a_task_that_kills_its_workers_fails_and_is_named_while_others_finish(
    lab: Lab, client: Client
) -> None:
    supervisor = Supervisor(lab)
    supervisor.start()
    try:
        with client.job("poison") as job:
            before = [lab.leaf(job, number) for number in range(LEAVES // 2)]
            poison = job.run(["sh", "-c", POISON.format(runs=lab.runs)], name="poison")
            after = [lab.leaf(job, number) for number in range(LEAVES // 2, LEAVES)]
            total = job.run(["sha256sum"], inputs=[*before, *after])
            failure, done = job.results([poison, total], timeout_s=40)
            lab.expect_right(client.read(done))
    finally:
        supervisor.end()
    assert isinstance(failure, Failure)
    assert failure.reason == "WORKER_FAILED"
    assert "3 workers died while they ran this task" in str(failure.details)
    # The master may not know yet which of the tasks here the first worker died of.
    assert (lab.runs / "poison").stat().st_size in (3, 4)
    told = lab.home.run("ciel", "job", "info", "last").stdout
    assert f"output {poison.id} of task poison failed (WORKER_FAILED)" in told
    assert ", 1 failed\n" in told


# --- stopped --------------------------------------------------------------------------------------

RANDOM: Final = "printf x >>{runs}/{number}; sleep 0.5; head -c {size} /dev/urandom"


@pytest.mark.slow
def test_late_reports_of_a_stopped_worker_do_not_count(lab: Lab, client: Client) -> None:
    """A task that ran on both workers produced two different results; every reader sees the same
    one.
    """
    first = lab.start(1)
    lab.start(2)
    with client.job("stopped", keep=True) as job:
        made = [
            job.run(["sh", "-c", RANDOM.format(runs=lab.runs, number=number, size=LARGE)])
            for number in range(2)
        ]
        job.want(made)
        lab.await_runs(2)
        first.send_signal(signal.SIGSTOP)
        settled = [*job.results(made, timeout_s=40)]
        content = [client.read(ref) for ref in settled]
        first.send_signal(signal.SIGCONT)
        wait_for(lambda: lab.cluster.log("worker1").count("joined the master") == 2, "its return")
        runs = sorted((lab.runs / str(number)).stat().st_size for number in range(2))
        assert runs == [1, 2]
        reads = [
            job.run(["sh", "-c", "sha256sum; sleep 0.2; echo $CIEL_WORKER"], inputs=[ref])
            for ref in made
            for _ in range(3)
        ]
        told = [client.read(ref).decode().split() for ref in job.results(reads, timeout_s=40)]
    digests = [hashlib.sha256(one).hexdigest() for one in content]
    assert [digest for digest, _, _ in told] == [digests[0]] * 3 + [digests[1]] * 3
    assert len({worker for *_, worker in told}) == 2, "the one that was stopped does nothing"


# --- a fork bomb ----------------------------------------------------------------------------------

NOBODY: Final = "54321"
BOMB: Final = """
$SIG{TERM} = "IGNORE";
my $end = time + 30;
while (time < $end) { my $pid = fork; setpgrp(0, 0) if defined $pid && !$pid; }
"""
CLEANED_WITHIN_S: Final = 10.0  # it needs 0.3 s on an idle machine


def bombs() -> int:
    """Count the living processes of the bomb."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = fields_of(entry)[0]
            found += entry.stat().st_uid == int(NOBODY) and state != "Z"
        except OSError:
            continue  # it has ended meanwhile
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may limit another user's processes")
def test_a_fork_bomb_with_a_limit_of_processes_ends_at_its_time_limit(
    lab: Lab, client: Client
) -> None:
    lab.start(1, "--slots", "2")
    limited = ["setpriv", "--reuid", NOBODY, "--clear-groups", "prlimit", "--nproc=32"]
    limit_s = 1.0
    with client.job("bomb") as job:
        bomb = job.run([*limited, "perl", "-e", BOMB], needs=Needs(timeout_s=limit_s))
        job.want([bomb])
        wait_for(lambda: bombs() == 32, "the bomb to be at its limit")
        begun_s = time.monotonic()
        others = [job.run(["echo", str(number)]) for number in range(20)]
        values = [*job.results(others, timeout_s=40)]
        (failure,) = job.results([bomb], timeout_s=40)
        took_s = time.monotonic() - begun_s
        assert bombs() == 0
    assert [ref.content for ref in values if isinstance(ref, Value)] == [
        b"%d\n" % number for number in range(20)
    ]
    assert isinstance(failure, Failure)
    assert failure.reason == "TIMED_OUT"
    assert took_s < limit_s + CLEANED_WITHIN_S
