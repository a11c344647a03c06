"""Two kernels that share only an image and a directory of files run jobs together.

A kernel is a set of namespaces: a network with nothing but a loopback interface, and a separate
`/dev/shm`, `/proc`, process table and list of abstract sockets. This file holds locks on the image
all the time, so no daemon can rely on one. `make check-two-kernels` does the same in virtual
machines.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ciel.scc.device import Device
from ciel.testing.homes import Home, wait_for
from ciel_tests.installed.languages import require_jansson

pytestmark = [
    pytest.mark.requirement("CIB-30"),
    pytest.mark.requirement("CIB-14"),
    pytest.mark.slow,
]

EXAMPLES = Path(__file__).parents[3] / "examples"
SDK = Path(__file__).parents[3] / "executors" / "sdk" / "c"
IMAGE_BYTES = 96 << 20
SEPARATE = ("unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
FURNISH = """
mount -t tmpfs none /dev/shm && mount -t proc none /proc && ip link set lo up && echo ready
exec cat
"""
EXCHANGE = """
import hashlib, sys
from pathlib import Path
from ciel.client import Client

spool = Path(sys.argv[1])
together = "touch {own}; until [ -e {other} ]; do sleep 0.01; done; "
one, other, third, fourth = (spool / name for name in ("one", "other", "third", "fourth"))
with Client() as client, client.job("exchange") as job:
    make, read = together + "head -c 300000 /dev/zero", together + "sha256sum"
    pairs = [(one, other), (other, one)]
    parts = [job.run(["sh", "-c", make.format(own=a, other=b)]) for a, b in pairs]
    pairs = [(third, fourth), (fourth, third)]
    wholes = [
        job.run(["sh", "-c", read.format(own=a, other=b)], inputs=parts) for a, b in pairs
    ]
    job.want(wholes)
    digest = hashlib.sha256(bytes(600000)).hexdigest()
    found = [job.read(whole, timeout_s=30).split()[0].decode() for whole in wholes]
    print("right" if found == [digest, digest] else found)
"""

MAKE = """
import sys
from pathlib import Path
from ciel.shm.client import ShmdClient

with ShmdClient(sys.argv[1]) as client:
    path = client.write("4f2a:out:0")
    Path(path).write_text("of another kernel")
    client.commit(path, "4f2a:out:0")
"""
LOAD = """
import sys
from pathlib import Path
from ciel.shm.client import ShmdClient

with ShmdClient(sys.argv[1]) as client:
    print(Path(client.load("4f2a:out:0")).read_text())
"""


class Kernel(Home):
    """A kernel, and the home of its user, until `end`."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._keeper = subprocess.Popen(
            [*SEPARATE, "sh", "-c", FURNISH], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "ready\n":
            pytest.skip(f"no namespaces here: {self._keeper.communicate()[1].strip()}")
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children")
        self.proc_name = children.read_text().strip()
        self.daemons: list[subprocess.Popen[str]] = []
        super().__init__(path)

    def command(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", self.proc_name, "-n", "-m", "-p", "-i", "-u", "--", *argv]

    def serve(self, *argv: str) -> None:
        """Start a daemon."""
        self.daemons.append(self.start(*argv, "--log", str(self.path / f"{argv[0]}.log")))

    def end(self) -> None:
        """End the daemons, the last one first, and the kernel."""
        for daemon in reversed(self.daemons):
            for pid in self._processes_of(daemon):
                os.kill(pid, signal.SIGTERM)
            daemon.communicate(timeout=20)
        self._keeper.communicate(timeout=20)

    def die(self) -> None:
        """Kill all processes at once, as a power cut does."""
        os.kill(int(self.proc_name), signal.SIGKILL)
        for daemon in self.daemons:
            daemon.communicate(timeout=20)
        self.daemons.clear()

    @staticmethod
    def _processes_of(daemon: subprocess.Popen[str]) -> list[int]:
        """Return the daemon's processes below `nsenter`, which forks into the namespace."""
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text()
        return [int(word) for word in children.split()]


class Together:
    """A master and a worker in the first kernel, a worker in the second kernel, and bridges."""

    def __init__(self, path: Path) -> None:
        image = self.image = path / "image"
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        self.spool = path / "spool"
        self.spool.mkdir()
        store = f"scc:path={image},kernels=separate"
        made = f"{store},capacity=48MiB,cores=2,block=65536"
        self.one, self.other = Kernel(path / "one"), Kernel(path / "other")
        access = str(self.spool / "access.json")
        worker = ("ciel-worker", "--access", access, "--slots", "1")
        self.one.serve("ciel-master", "--listen", "127.0.0.1:8100", "--access", access)
        wait_for(Path(access).exists, "the master")
        spool = ("--spool", str(self.one.path / "spool"))
        self.one.serve(*worker, *spool, "--listen", "127.0.0.1:8101", "--store", made)
        self.await_log(self.one, "ciel-worker", "joined the master")
        self.bridge(self.one, 0, store, 8100, 8101)
        self.bridge(self.other, 1, store, 8102)
        self.await_log(self.other, "ciel", "port 8100 leads to")
        spool = ("--spool", str(self.other.path / "spool"))
        self.other.serve(*worker, *spool, "--listen", "127.0.0.1:8102", "--store", store)
        self.await_log(self.other, "ciel-worker", "joined the master")
        for kernel in (self.one, self.other):
            kernel.environ["CIEL_ACCESS"] = access

    def bridge(self, kernel: Kernel, number: int, store: str, *ports: int) -> None:
        offers = [word for port in ports for word in ("--offer", str(port))]
        kernel.serve("ciel", "bridge", str(number), "--store", store, *offers)

    @staticmethod
    def await_log(kernel: Kernel, daemon: str, text: str) -> None:
        log = kernel.path / f"{daemon}.log"
        wait_for(lambda: log.exists() and text in log.read_text(), f"'{text}' in {log}")

    def run(self, name: str, *words: str) -> list[Any]:
        """Run an example twice at the same time, as a client of each kernel; return the values."""
        command = ("sw-job", *words, str(EXAMPLES / name / f"{name}.sw"))
        found = []
        for client in [kernel.start(*command) for kernel in (self.one, self.other)]:
            printed, said = client.communicate(timeout=120)
            assert client.returncode == 0, said
            found.append(json.loads(printed))
        return found

    def workers_of_last_jobs(self, count: int) -> set[str]:
        """Return the workers that ran tasks of the last jobs."""
        jobs = json.loads(self.one.run("ciel", "job", "list", "--json").stdout)
        listed = [
            self.one.run("ciel", "task", "list", "--all", "--json", job["id"]).stdout
            for job in jobs[-count:]
        ]
        return set(re.findall(r'"worker": ?"([^"]+)"', "".join(listed)))

    def counters(self, kernel: Kernel, port: int) -> dict[str, int]:
        """Return what a worker has fetched, asked by a client of a kernel."""
        key = json.loads((self.spool / "access.json").read_text())["key"]
        url = f"http://127.0.0.1:{port}/api/v1/counters"
        asked = kernel.run("curl", "-sf", "-H", f"Authorization: Bearer {key}", url)
        fetches: dict[str, int] = json.loads(asked.stdout)["fetches"]
        return fetches

    def living(self) -> list[int]:
        """Return the cores of the image that live, as the first kernel sees them."""
        with Device(self.image) as device:
            return [number for number in range(2) if device.core(number, waits=True).is_living]

    def end(self) -> None:
        self.other.end()
        self.one.end()
        for kernel in (self.one, self.other):
            assert not kernel.processes()


@contextmanager
def all_locks(path: Path) -> Iterator[None]:
    """Hold each kind of lock on a file, from the moment when it exists."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    path = tmp_path_factory.mktemp("kernels")
    (path / "image").touch()
    with all_locks(path / "image"):
        together = Together(path)
        yield together
        together.end()


def test_two_kernels_price_options_together(together: Together) -> None:
    require_jansson()
    program = together.spool / "binomial"
    sources = (EXAMPLES / "binomial" / "binomial.c", SDK / "ciel.c")
    subprocess.run(
        ["cc", "-O2", f"-I{SDK}", "-o", program, *sources, "-ljansson", "-lm"], check=True
    )
    words = ("-p", "binomial", str(program), "-E", "STEPS=1000", "-E", "CHUNK=100")
    assert together.run("binomial", *words) == [10.328694366, 10.328694366]
    assert len(together.workers_of_last_jobs(2)) == 2


def test_two_kernels_search_files_together(together: Together) -> None:
    word = re.compile(rb"^.*(?<!\w)lambda(?!\w)", re.MULTILINE)
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path for path in root.rglob("*.py")
        if path.is_file() and not {"site-packages", "test"} & {*path.relative_to(root).parts}
    ]  # fmt: skip
    lines = sum(len(word.findall(path.read_bytes())) for path in files)
    for found in together.run("grep", "-E", "WORD=lambda"):
        assert (found["files"], found["lines"]) == (len(files), lines)
    assert len(together.workers_of_last_jobs(2)) == 2


def test_workers_take_objects_of_another_kernel_from_the_image(together: Together) -> None:
    before = [together.counters(together.one, port) for port in (8101, 8102)]
    script = together.spool / "exchange.py"
    script.write_text(EXCHANGE)
    ran = together.other.run("python3", str(script), str(together.spool))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "right\n"
    after = [together.counters(together.one, port) for port in (8101, 8102)]
    for was, now in zip(before, after, strict=True):
        assert now["discovered"] > was["discovered"]
        assert now["http_bytes"] == was["http_bytes"]


@pytest.mark.requirement("CIB-31")
def test_a_program_loads_an_object_of_another_kernel(together: Together) -> None:
    """The daemons of the two workers exchange messages in the image, and link the object."""
    for kernel, script in ((together.one, MAKE), (together.other, LOAD)):
        ran = kernel.run("python3", "-c", script, str(kernel.path / "spool" / "store"))
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "of another kernel\n"


def test_a_kernel_that_dies_takes_no_job_with_it(together: Together) -> None:
    """This is the last test, because the other kernel is dead afterwards."""
    command = ("sw-job", "-E", "WORD=lambda", str(EXAMPLES / "grep" / "grep.sw"))
    client = together.one.start(*command)
    wait_for(lambda: len(together.workers_of_last_jobs(1)) == 2, "tasks in both kernels")
    together.other.die()
    printed, said = client.communicate(timeout=120)
    assert client.returncode == 0, said
    assert json.loads(printed)["files"] > 100
    wait_for(lambda: len(together.living()) == 1, "the end of the other core")
