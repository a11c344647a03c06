"""Tests several hosts: access from another host, transfers between hosts, and network cables that
are unplugged.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import pytest

from ciel.core.refs import INLINE_MAX_BYTES
from ciel.testing.homes import wait_for
from ciel_tests.clusters.hosts import Host, Hosts
from ciel_tests.installed.languages import LANGUAGES, build_ocaml, require_haskell, require_pypy

ROOT: Final = Path(__file__).parents[3]
MIB: Final = 1 << 20
PROGRAMS: Final = ROOT / "tests" / "integration" / "programs"
SETTINGS: Final = f"""
[executors.where]
command = ["{sys.executable}", "{PROGRAMS}/where.py"]
"""


class Cluster:
    """A master and a worker on the first host, and a worker on the second, each worker with a slot.

    Commands on both hosts find the master by an access file that was copied by hand.
    """

    def __init__(self, here: Host, there: Host) -> None:
        self.here, self.there = here, there
        listen = ("--listen", f"{here.address}:0", "--new-key")
        here.start("ciel-master", *listen, "--log", "master.log")
        wait_for(lambda: [*here.path.glob("state/ciel/*/access.json")], "the access file")
        (access,) = here.path.glob("state/ciel/*/access.json")
        self.url = str(json.loads(access.read_text())["url"])
        here.environ["CIEL_MASTER"] = self.url
        shutil.copy2(access, there.path / "carried.json")
        there.environ["CIEL_ACCESS"] = str(there.inside / "carried.json")
        self.start_worker(here, "worker", "--listen", f"{here.address}:0")
        self.start_worker(there, "worker", "--listen", ":0", "--advertise", f"{there.address}:0")

    def start_worker(self, host: Host, name: str, *options: str) -> subprocess.Popen[str]:
        own = ("--slots", "1", "--store", "disk", "--spool", f"{name}-spool")
        worker = host.start("ciel-worker", *own, "--log", f"{name}.log", *options)
        log = host.path / f"{name}.log"
        wait_for(lambda: log.exists() and "joined the master" in log.read_text(), "a worker")
        return worker

    def workers(self) -> list[str]:
        done = self.here.run("ciel", "worker", "list", "--json")
        return sorted(str(worker["netloc"]) for worker in json.loads(done.stdout))

    def suspected(self) -> list[str]:
        """Return the addresses of workers that the master suspects."""
        done = self.here.run("ciel", "worker", "list", "--json")
        return [str(each["netloc"]) for each in json.loads(done.stdout) if each["suspicion"]]

    def python(self, host: Host, script: str) -> str:
        """Run a script on a host; return its output."""
        done = host.run("python", "-c", script, timeout_s=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stored(self) -> list[dict[str, int]]:
        """Return the objects in the stores of each host, with their sizes."""
        found: list[dict[str, int]] = [{}, {}]
        for host, stored in zip((self.here, self.there), found, strict=True):
            for path in host.path.glob("*-spool/store/objects/*"):
                with suppress(FileNotFoundError):  # it has been deleted meanwhile
                    stored[path.name] = path.stat().st_size
        return found

    def traffic_bytes(self) -> int:
        """Return the bytes that the second host has received and sent over its network link."""
        return sum(self.there.traffic_bytes())


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with Hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def shared_cluster(hosts: list[Host]) -> Cluster:
    for host in hosts:
        settings = host.path / "config" / "ciel" / "config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS)
        host.environ["CIEL_SKYPY_BASE"] = str(LANGUAGES / "skypy")
    return Cluster(*hosts)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Return the cluster of this file, with both workers connected."""
    assert len(shared_cluster.workers()) == 2
    return shared_cluster


def said(host: Host, *argv: str) -> tuple[int, str]:
    """Run a daemon that cannot start; return its exit status and last message."""
    done = host.run("timeout", "20", *argv)
    (text,) = [line for line in done.stderr.splitlines() if line.startswith(f"{argv[0]}: ")]
    return done.returncode, text.removeprefix(f"{argv[0]}: ")


# --- access from another host ---------------------------------------------------------------------


def test_a_master_listens_beyond_its_host_only_with_an_existing_key(hosts: list[Host]) -> None:
    here = hosts[0]
    assert said(here, "ciel-master", "--listen", f"{here.address}:0") == (
        3,
        f"will not listen on {here.address}: other hosts can reach it, "
        "and this master has no key yet; start once on 127.0.0.1 with the same --state, "
        "or use --new-key",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["ciel-master", "--new-key", "--listen", ":0"],
        ["ciel-master", "--new-key", "--listen", "[::]:0"],
        ["ciel-worker", "--listen", "0.0.0.0:0"],
    ],
)
def test_a_daemon_that_listens_on_all_addresses_needs_an_advertised_one(
    cluster: Cluster, words: list[str]
) -> None:
    assert said(cluster.here, *words) == (
        2,
        f"--listen {words[-1]} means every address of this computer; "
        "name the one that other hosts connect to: --advertise HOST:0",
    )


@pytest.mark.slow
def test_access_from_another_host_needs_the_key(cluster: Cluster) -> None:
    there = cluster.there
    place = re.sub(r"http://(.*):", r"\1_", cluster.url)
    no_key = (
        f"no key for {cluster.url} (--master): there is no "
        f"{there.inside}/state/ciel/{place}/access.json, "
        "and neither --access nor CIEL_ACCESS names a file"
    )
    carried = there.environ.pop("CIEL_ACCESS")
    try:
        address = f"{there.address}:0"
        assert said(there, "ciel-worker", "--master", cluster.url, "--listen", address) == (
            3, no_key,
        )  # fmt: skip
        assert said(there, "ciel", "status", "--master", cluster.url) == (3, no_key)
    finally:
        there.environ["CIEL_ACCESS"] = carried


# --- addresses of workers -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_other_hosts_cannot_reach_names_the_option_to_use(cluster: Cluster) -> None:
    assert said(cluster.there, "ciel-worker") == (
        2,
        "other hosts cannot reach this worker: it listens on 127.0.0.1, which only this host "
        f"reaches, but other hosts use its master at {cluster.url}; use: --listen "
        f"{cluster.there.address}:0",
    )


@pytest.mark.slow
def test_a_worker_cannot_join_with_an_advertised_address_of_another_process(
    cluster: Cluster,
) -> None:
    there, before = cluster.there, cluster.workers()
    another = next(place for place in before if place.startswith(cluster.here.address))
    for wrong, why in (
        (
            f"{there.address}:1",
            "cannot reach this worker at this address: .* Could not connect to server",
        ),
        (cluster.url.removeprefix("http://"), "another program answers at this address"),
        (another, "another program answers at this address"),
    ):
        options = ["--listen", f"{there.address}:0", "--advertise", wrong]
        status, text = said(there, "ciel-worker", *options)
        assert (status, re.fullmatch(f"--advertise {wrong}: {why}", text) is None) == (2, False)
    assert cluster.workers() == before


# --- transfers between hosts ----------------------------------------------------------------------


class Crossings(threading.Thread):
    """Polls for objects that appear on both hosts within a `with` block: each was transferred once.

    At the end `size_bytes` is the size of all of them.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        here, there = cluster.stored()
        self._before = here.keys() & there.keys()
        self._seen: list[dict[str, int]] = [{}, {}]
        self._over = threading.Event()
        self.size_bytes = 0

    def run(self) -> None:
        while not self._over.wait(0.01):
            for seen, stored in zip(self._seen, self._cluster.stored(), strict=True):
                seen.update(stored)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()
        here, there = self._seen
        crossed = (here.keys() & there.keys()) - self._before
        self.size_bytes = sum(here[name] for name in crossed)


def demo(host: Host) -> list[str]:
    """Run the demo on a host, which compares its findings with plain grep; return its output
    without the time that it took.
    """
    done = host.run("python", str(ROOT / "examples" / "search.py"))
    assert done.returncode == 0, done.stderr
    said = re.sub(r" in \d+\.\d+ s$", "", done.stdout, flags=re.MULTILINE)
    return [line for line in said.splitlines() if not line.startswith("logs: ")]


@pytest.mark.slow
def test_the_demo_has_the_same_result_on_two_hosts_as_on_one(cluster: Cluster) -> None:
    master = cluster.here.environ.pop("CIEL_MASTER")
    expected = demo(cluster.here)  # on its own temporary cluster
    cluster.here.environ["CIEL_MASTER"] = master
    for host in (cluster.here, cluster.there):
        before_bytes = cluster.traffic_bytes()
        with Crossings(cluster) as crossings:
            assert demo(host) == expected
        assert 0 < crossings.size_bytes <= cluster.traffic_bytes() - before_bytes


SIZES: Final = (20 * MIB, 20 * MIB, 0, 1, 1023, 1024, 4095, 4096, 4097, 65535, 65536, 65537)
BOTH_WAYS: Final = f"""
import hashlib
from ciel import Client
read = "sha256sum; readlink /proc/self/ns/net; sleep 0.5"
with Client() as client, client.job("both ways", keep=True) as job:
    made = [
        job.run(["sh", "-c", f"head -c {{size}} /dev/urandom; sleep {{int(size > 65537)}}"])
        for size in {SIZES}
    ]
    read = [job.run(["sh", "-c", read], inputs=made) for _ in range(2)]
    job.want(made)
    told = [client.read(ref).decode().split() for ref in job.results(read, timeout_s=50)]
    whole = [job.read(one) for one in made]
    print(hashlib.sha256(b"".join(whole)).hexdigest(), [len(one) for one in whole])
    for digest, _, host in told:
        print(digest, host)
"""


@pytest.mark.requirement("CIB-3")
@pytest.mark.slow
def test_objects_of_all_sizes_are_transferred_in_both_directions(cluster: Cluster) -> None:
    before_bytes = cluster.traffic_bytes()
    with Crossings(cluster) as crossings:
        first, *others = cluster.python(cluster.there, BOTH_WAYS).splitlines()
    digest, _, found = first.partition(" ")
    assert json.loads(found) == [*SIZES]
    assert [line.split()[0] for line in others] == [digest, digest]
    assert len({line.split()[1] for line in others}) == 2, "both were read on one host"
    assert crossings.size_bytes == sum(size for size in SIZES if size > INLINE_MAX_BYTES)
    to_client_bytes = SIZES[0]  # at least: one large object was produced on the second host
    assert cluster.traffic_bytes() - before_bytes >= crossings.size_bytes + to_client_bytes


DAMAGED: Final = """
import sys
from ciel import Client
with Client() as client, client.job("damaged", keep=True) as job:
    many = [job.run(["echo", str(number)]) for number in range(1000)]
    (listed,) = job.add("sync", {"args": {"inputs": many}})
    whole = job.read(listed)
    print(listed.id, flush=True)
    sys.stdin.readline()
    busy = job.run(["sleep", "1"], inputs=[listed])  # where it lies
    read = job.run(["cat"], inputs=[listed])  # so elsewhere
    job.want([busy, read])
    print(len(whole), job.read(read, timeout_s=30) == whole)
"""


@pytest.mark.slow
def test_a_damaged_object_is_detected_during_transfer_and_recomputed(cluster: Cluster) -> None:
    command = cluster.here.start("python", "-c", DAMAGED, stdin=subprocess.PIPE)
    assert command.stdout is not None
    object_id = command.stdout.readline().strip()
    name = object_id.replace(":", "+")
    hosts = (cluster.here, cluster.there)
    (place,) = [path for host in hosts for path in host.path.glob(f"*-spool/store/objects/{name}")]
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 1
    place.chmod(0o600)
    place.write_bytes(content)
    place.chmod(0o400)
    printed, errors = command.communicate("\n", timeout=40)
    size_bytes, was_equal = printed.split()
    assert (int(size_bytes) > 65536, was_equal) == (True, "True"), errors
    told = "".join((host.path / "worker.log").read_text() for host in hosts)
    (line,) = [line for line in told.splitlines() if f"cannot fetch {object_id}" in line]
    assert "checksum" in line


# --- programs of every kind -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def brought(hosts: list[Host], jars: dict[str, Path]) -> Path:
    """Copy programs that executors load to the second host; return their directory there."""
    there = hosts[1]
    (there.path / "brought").mkdir()
    for jar in jars.values():
        shutil.copy(jar, there.path / "brought")
    sdk = ROOT / "executors" / "sdk" / "c"
    target = there.path / "brought" / "where.so"
    source = PROGRAMS / "loaded" / "where.c"
    command = ["cc", "-shared", "-fPIC", f"-I{sdk}", "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    return there.inside / "brought"


@pytest.fixture
def installed(hosts: list[Host], tmp_path: Path) -> Path:
    """Install programs on both hosts under the same path; return that path."""
    require_haskell()
    require_pypy()
    where = build_ocaml(PROGRAMS / "where.ml", tmp_path)
    for host in hosts:
        (host.path / "installed").mkdir()
        for path in (where, PROGRAMS / "where.hs", LANGUAGES / "Ciel.hs"):
            shutil.copy(path, host.path / "installed")
    return hosts[0].inside / "installed"


@pytest.mark.requirement("CIB-2", "CIB-3")
@pytest.mark.slow
def test_every_executor_runs_its_programs_on_either_host(
    cluster: Cluster, brought: Path, installed: Path
) -> None:
    command = ["python", str(PROGRAMS / "everywhere.py"), str(brought), str(installed)]
    done = cluster.there.run(*command, timeout_s=60)
    assert (done.returncode, done.stdout) == (0, "wrong: {}\n"), done.stderr


@pytest.mark.slow
def test_a_job_in_java_spreads_over_both_hosts(cluster: Cluster, brought: Path) -> None:
    (cluster.there.path / "word").write_text("hello")
    command = ["ciel", "java", "-P", "words=word"]
    done = cluster.there.run(*command, f"{brought}/apps.jar", "apps.Squares", "6", "300")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "91" + " hello" * 6 + ", on hosts: 2, HELLO"


# --- an unplugged cable ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_goes_on_after_a_cable_was_unplugged_for_seconds(cluster: Cluster) -> None:
    before = cluster.workers()
    script = "sleep 0.1; echo {}; head -c 65536 /dev/zero"
    job = cluster.there.start(
        "ciel", "submit", "--array", "1-60", "--out", "out", "--", "sh", "-c", script
    )
    out = cluster.there.path / "out"
    wait_for(lambda: out.exists() and len([*out.iterdir()]) > 5, "the first results")
    cluster.there.set_link(up=False)
    log = cluster.there.path / "worker.log"
    wait_for(lambda: "lost the master" in log.read_text(), "one to notice")
    wait_for(lambda: cluster.suspected(), "the other to notice")
    cluster.there.set_link(up=True)
    _, errors = job.communicate(timeout=40)
    assert job.returncode == 0, errors
    for number in range(1, 61):
        assert (out / str(number)).read_bytes() == b"%d\n" % number + bytes(65536)
    wait_for(lambda: not cluster.suspected(), "the worker that was away")
    assert cluster.workers() == before
    said = log.read_text()
    assert (said.count("joined the master"), said.count("reconnected to the master")) == (1, 1)
