"""Tests clients of the Python API whose connection breaks, and clients that share a job, fork, are
interrupted, or are killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ciel.access.access_file import AccessFile
from ciel.access.keys import Role
from ciel.access.settings import MasterLocation
from ciel.client import LocalCluster
from ciel.client.client import Client
from ciel.client.connection.dialing import Dialer
from ciel.client.errors import AccessRefusedError, ConnectionLostError, JobEndedError
from ciel.client.jobs import Job
from ciel.core.refs import Future, Value
from ciel.testing.homes import Home, wait_for
from ciel.wire.descriptors import read_summary

TASKS = 800


class Proxy:
    """Forwards bytes between clients and a master, and cuts or delays connections."""

    def __init__(self, netloc: str) -> None:
        host, _, port = netloc.rpartition(":")
        self._master = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.accepted = 0
        self.is_down = False
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Break all connections while bytes are in flight, which are lost."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for channel in pair:
                with contextlib.suppress(OSError):
                    channel.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.is_down:
                near.close()
                continue
            self.accepted += 1
            far = socket.create_connection(self._master)
            with self._lock:
                self._pairs.append((near, far))
            thread = threading.Thread(target=self._carry, args=(near, far))
            self._threads.append(thread)
            thread.start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Forward small pieces, so that a cut occurs within a frame."""
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while True:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(3001)
                    if not data:
                        return
                    other[source].sendall(data)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with LocalCluster(workers=2, slots=2, environ=environ) as cluster:
        yield cluster


KILLED = """
import ciel
client = ciel.Client()
job = client.job("killed")
job.want([job.run(["sh", "-c", "setsid sleep 777 & sleep 777"])])
print(job.id, flush=True)
job.wait()
"""


class Forsaken(NamedTuple):
    """Jobs whose clients were cut off or killed when the tests of this file started."""

    client: Client
    job: Job
    ref: Future
    id_of_killed: str


@pytest.fixture(scope="module", autouse=True)
def forsaken(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forsaken]:
    """Cut off one client and kill another; their grace periods pass while the other tests run."""
    path = tmp_path_factory.mktemp("access") / "access.json"
    found = cluster.location
    AccessFile(found.url, found.control, found.cluster_id, found.key, os.getpid(), 1).write(path)
    environ = {**os.environ, "CIEL_ACCESS": str(path)}
    command = [sys.executable, "-c", KILLED]
    with Proxy(found.url.partition("://")[2]) as proxy:
        client = Client(through(cluster, proxy))
        job = client.job("cut off")
        ref = job.run(["sleep", "777"])
        job.want([ref])
        wait_for(lambda: job.summary and job.summary.counts.get("assigned"), "a program to run")
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            id_of_killed = process.stdout.readline().strip()
            wait_for(lambda: len(sleepers(cluster)) == 3, "its programs")
            process.kill()
        proxy.is_down = True
        proxy.cut()
        yield Forsaken(client, job, ref, id_of_killed)
    client.close()


def await_cancelled(client: Client, job_id: str) -> None:
    """Wait for the end of a job without attaching to it: it would then belong to this client."""

    def state() -> str:
        return read_summary(client.ask("jobs", {"job": job_id})[0]).state

    wait_for(lambda: state() not in ("active", "cancelling"), "the end of the job")
    assert state() == "cancelled"


def sleepers(cluster: LocalCluster) -> list[str]:
    """List the processes here that sleep for 777 s."""
    return [
        entry.name
        for entry in Path("/proc").glob("[0-9]*")
        if command_of(entry).startswith(b"sleep\x00777")
    ]


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[Proxy]:
    with Proxy(cluster.location.url.partition("://")[2]) as proxy:
        yield proxy


def through(cluster: LocalCluster, proxy: Proxy) -> MasterLocation:
    return cluster.location._replace(control=proxy.netloc)


@pytest.mark.slow
def test_a_connection_that_breaks_repeatedly_loses_and_repeats_no_message(
    cluster: LocalCluster, proxy: Proxy
) -> None:
    chance = random.Random(7)
    with Client(through(cluster, proxy)) as client, client.job("cuts") as job:
        done = threading.Event()

        def cut() -> None:
            while not done.wait(chance.uniform(0.01, 0.1)):
                proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        try:
            refs = []
            for number in range(TASKS):
                refs.append(job.run(["echo", number]))
                if number % 50 == 49:
                    job.want(refs[-50:])
                    client.ask("status")
            made = [ref.content for ref in job.results(refs, 60) if isinstance(ref, Value)]
        finally:
            done.set()
            cutting.join()
        assert made == [b"%d\n" % number for number in range(TASKS)]
        assert proxy.accepted > 5
        summary = client.ask("job", {"job": job.id})["summary"]
        assert summary[5] == {"done": TASKS}


@pytest.mark.slow
def test_a_master_that_is_stopped_for_a_while_loses_nothing(
    cluster: LocalCluster,
) -> None:
    with Client(cluster) as client, client.job("paused") as job:
        refs = [job.run(["echo", number]) for number in range(100)]
        job.want(refs)
        os.kill(cluster.master.pid, signal.SIGSTOP)
        try:
            time.sleep(3.5)  # workers consider a master lost that is silent for 3 s
        finally:
            os.kill(cluster.master.pid, signal.SIGCONT)
        made = [ref.content for ref in job.results(refs, 60) if isinstance(ref, Value)]
    assert made == [b"%d\n" % number for number in range(100)]


def test_a_master_refuses_to_resume_an_unknown_session(cluster: LocalCluster) -> None:
    """This is the case after a restart of the master, or after the grace period."""
    found = cluster.location
    dialer = Dialer(found.control, found.key, Role.SUBMIT, found.cluster_id, {})
    with pytest.raises(
        AccessRefusedError, match="the master does not know this client: it was disconnected"
    ):
        dialer.dial(5.0, 0)
    line = dialer.dial(5.0)
    with pytest.raises(AccessRefusedError, match="resumed its session with impossible counts"):
        dialer.dial(5.0, 10)
    line.channel.close()


def test_clients_share_the_results_of_a_job(cluster: LocalCluster) -> None:
    with Client(cluster) as first, Client(cluster) as second:
        job = first.job("shared")
        made, unmade = job.run(["echo", "made"], name="early"), job.run(["echo", "later"])
        assert job.read(made) == b"made\n"
        attached = second.attach(job.id)
        assert attached is second.attach(first.ask("jobs", {"job": job.id})[0][1])
        assert [name for name, _ in attached.wanted()] == ["early"]
        assert attached.read(made) == b"made\n"
        assert attached.read(unmade) == b"later\n"
        assert job.read(unmade) == b"later\n"
        first.close()  # the job goes on: it now belongs to the attached client
        own = attached.run(["cat"], inputs=[made])
        assert attached.read(own) == b"made\n"
        attached.close()
        assert attached.wait(30).state == "completed"
    with Client(cluster) as third, third.attach(job.id) as ended:
        assert ended.read(own) == b"made\n"
        with pytest.raises(JobEndedError):
            ended.result(ended.run(["echo", "too late"]))


INTERRUPTED = """
import ciel, sys

def note_lost(unraisable):
    sys.__unraisablehook__(unraisable)
    if unraisable.exc_type is KeyboardInterrupt:  # the signal arrived in a `__del__`
        print("lost", flush=True)

sys.unraisablehook = note_lost

def double(number):
    return 2 * number

def use(client, futures):
    futures += [client.submit(double, number) for number in range(30)]
    assert [future.result() for future in futures[-30:]] == [2 * n for n in range(30)]
    assert list(client.map(double, range(50))) == [2 * n for n in range(50)]
    assert client.get(client.put([1, 2])) == [1, 2]
    done, _ = ciel.wait([client.submit(double, 1), client.submit(double, 2)])
    assert len(done) == 2
    assert client.run(["echo", "x"]).result() == b"x\\n"
    with client.job("programs") as job:
        assert job.read(job.run(["echo", "y"])) == b"y\\n"

with ciel.Client(cluster_options={"slots": 2}) as client:
    use(client, [])
    futures, interrupts = [], 0
    while interrupts < int(sys.argv[1]):
        try:
            print("ready", flush=True)
            while True:
                use(client, futures)
        except KeyboardInterrupt:
            interrupts += 1
            print("interrupted", flush=True)
    use(client, futures)
    assert [future.result(10) for future in futures[-30:]] == [2 * n for n in range(30)]
    print("lost:", len(ciel.wait(futures, 20)[1]), flush=True)
print("closed", flush=True)
"""


@pytest.mark.slow
def test_a_client_goes_on_after_ctrl_c_at_any_moment(home: Home) -> None:
    chance = random.Random(3)
    count = 25
    process = home.start("python", "-X", "faulthandler", "-c", INTERRUPTED, str(count))
    assert process.stdout is not None
    for _ in range(count):
        # The program expects the next signal only now.
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.08))
        said = "lost\n"
        while said == "lost\n":
            process.send_signal(signal.SIGINT)
            if not select.select([process.stdout], [], [], 60.0)[0]:
                process.send_signal(signal.SIGABRT)  # so that it prints its stacks
            said = process.stdout.readline()
        assert said == "interrupted\n", (said, process.communicate(timeout=30))
    try:
        said, complaints = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # so that it prints its stacks
        said, complaints = process.communicate(timeout=30)
    assert said == "lost: 0\nclosed\n", complaints
    assert process.returncode == 0, complaints
    home.expect_nothing_left()


BRIEF = """
import ciel
with ciel.Client(cluster_options={"slots": 1}) as client:
    print(client.submit(sum, [1, 2]).result())
"""


@pytest.mark.slow
def test_ctrl_c_while_a_cluster_starts_or_ends_leaves_nothing(home: Home) -> None:
    processes = []
    for number in range(8):
        process = home.start("python", "-c", BRIEF)
        processes.append(process)
        time.sleep(0.15 + 0.09 * number)
        process.send_signal(signal.SIGINT)
    for process in processes:
        said, complaints = process.communicate(timeout=30)
        assert process.returncode in (0, 130, -signal.SIGINT), complaints
        assert said in ("", "3\n")
        assert "RuntimeError:" not in complaints
        assert "Exception ignored" not in complaints
    home.expect_nothing_left()


@pytest.mark.slow
def test_a_client_that_was_disconnected_for_too_long_raises(
    cluster: LocalCluster, forsaken: Forsaken
) -> None:
    with pytest.raises(ConnectionLostError) as caught:
        forsaken.job.result(forsaken.ref, 60)
    assert str(caught.value).endswith(
        "it closed the connection; it could not be reached again within 5 s: "
        "it closed the connection: it is about to end, or it is not a master"
    )
    with pytest.raises(ConnectionLostError):
        forsaken.client.ask("status")
    with Client(cluster) as client:
        await_cancelled(client, forsaken.job.id)
        job = client.attach(forsaken.job.id)
        with pytest.raises(JobEndedError, match="its client was disconnected"):
            job.result(job.run(["true"]))


def test_the_job_of_a_killed_client_is_cancelled_with_its_programs(
    cluster: LocalCluster, forsaken: Forsaken
) -> None:
    with Client(cluster) as client:
        await_cancelled(client, forsaken.id_of_killed)
    wait_for(lambda: not sleepers(cluster), "the end of its programs")
