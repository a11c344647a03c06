"""Local clusters with real daemons, and the files that they leave."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ciel.client import Client, LocalCluster
from ciel.client.errors import ClusterError, ClusterOptionError, TaskFailedError
from ciel.core.refs import Concrete
from ciel.core.tasks import Needs
from ciel.execution.kept import KEPT_ATTEMPTS_MAX
from ciel.testing.homes import command_of, wait_for

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the daemons of a test separate directories, by which it can find them."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("CIEL_MASTER", "CIEL_ACCESS", "CIEL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    environ = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with LocalCluster(workers=2, environ=environ) as cluster:
        yield cluster


def eventually(condition: Callable[[], object]) -> bool:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def processes_of(path: Path) -> list[str]:
    """List the command lines of all processes that mention a path."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                line = command_of(entry)
            except OSError:
                continue
            if str(path) in line:
                found.append(f"{entry.name} {line}")
    return found


def pid_of(name: str, path: Path) -> int:
    (line,) = [line for line in processes_of(path) if f"{name}.log" in line]
    return int(line.split()[0])


def test_a_graph_runs(cluster: LocalCluster) -> None:
    with Client(cluster) as client, client.job("sum") as job:
        parts = [job.run(["sh", "-c", f"seq {n} | tail -1"]) for n in range(1, 5)]
        total = job.run(["awk", "{s += $1} END {print s}"], inputs=parts)
        assert job.read(total) == b"10\n"


def test_a_large_object_goes_there_and_back(cluster: LocalCluster, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    path = tmp_path / "large"
    path.write_bytes(content)
    with Client(cluster) as client, client.job() as job:
        ref = client.upload(path)
        assert isinstance(ref, Concrete)
        assert len(ref.locations) == 2
        assert job.read(job.run(["cat"], inputs=[ref])) == content
        placed = job.run(["cat", "in/place"], files={"in/place": ref})
        assert job.read(placed) == content


def test_the_cluster_says_what_it_is(cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        status = client.ask("status")
    assert [worker["slots"] for worker in status["workers"]] == [cluster.slots] * 2
    assert status["cluster_id"] == cluster.location.cluster_id


def test_nothing_is_left_but_logs(state: Path) -> None:
    cluster = LocalCluster(workers=2, slots=1, store="shm")
    shm = {Path("/dev/shm", f"ciel-{instance}") for instance in cluster._stores.names}
    with Client(cluster) as client, client.job() as job:
        job.result(job.run(["seq", "100000"]))
    assert any(path.exists() for path in shm)
    cluster.close()
    cluster.close()
    assert processes_of(state) == []
    assert list((state / "tmp").iterdir()) == []
    assert not any(path.exists() for path in shm)
    kinds = {path.suffix for path in cluster.directory.iterdir()}
    assert kinds <= {".log", ".stderr", ".dump"}  # a dump says that a daemon had to wait for a CPU


@pytest.mark.slow
def test_stores_in_memory_share_what_one_alone_would_have(state: Path) -> None:
    half_bytes = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize // 2
    with LocalCluster(workers=3, slots=1, store="shm") as cluster, Client(cluster) as client:
        wait_for(lambda: len(client.ask("stores")) == 6, "what stores tell")
        told = [row["capacity_bytes"] for row in client.ask("stores") if row["name"] == "memory"]
    assert 0 < sum(told) <= half_bytes


@pytest.mark.slow
def test_the_scratch_directory_of_a_failed_task_is_where_its_history_says() -> None:
    with LocalCluster() as cluster, Client(cluster) as client:
        job = client.job()
        with pytest.raises(TaskFailedError) as caught:
            job.result(job.run(["sh", "-c", "echo trace >clue; exit 3"]))
    text = str(caught.value)
    kept = Path(text[text.index(str(cluster.directory)) :].split()[0])
    assert [path.read_text() for path in kept.rglob("clue")] == ["trace\n"]


def left_of(instance: str, spill: Path) -> list[str]:
    """List the files of stores of a name, in memory and below a path."""
    left = [path.name for path in Path("/dev/shm").glob(f"ciel*{instance}*")]
    return sorted(left + [path.name for path in spill.glob("*")])


@pytest.mark.slow
@pytest.mark.parametrize("store", ["shm:", "scc:cores=3,"])
def test_stores_with_a_given_name_are_each_workers_own_and_go_with_the_cluster(
    state: Path, store: str
) -> None:
    instance = f"test-{os.getpid()}"
    spec = f"{store}capacity=16MiB,instance={instance},spill={state}/spill"
    with LocalCluster(workers=2, store=spec) as cluster, Client(cluster) as client:
        cluster.add_worker()
        with client.job() as job:
            job.result(job.run(["head", "-c", "3000000", "/dev/zero"]))
        names = [name for name in left_of(instance, state / "spill") if "spill" not in name]
        if store == "shm:":
            assert names == [f"ciel-{instance}", f"ciel-{instance}-2", f"ciel-{instance}-3"]
        else:
            assert names == [f"ciel-scc-{instance}"]
        assert len(left_of(instance, state / "spill")) == len(names) + 3
    assert left_of(instance, state / "spill") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shm", "scc"])
def test_one_worker_at_a_time_uses_a_named_store(state: Path, name: str) -> None:
    instance = f"test-{os.getpid()}"
    spec = f"{name}:capacity=16MiB,instance={instance}"
    with LocalCluster(store=spec) as cluster, Client(cluster) as client, client.job() as job:
        ref = job.run(["seq", "100000"])
        size_bytes = len(job.read(ref, 30))
        said = f"'instance={instance}': process {cluster.workers[0].pid} already uses"
        with pytest.raises(ClusterOptionError, match=f"^worker-1 could not start: {said} "):
            LocalCluster(store=spec)
        assert len(job.read(ref, 30)) == size_bytes
        os.kill(cluster.workers[0].pid, signal.SIGKILL)  # then another worker takes it
        assert job.read(job.run(["echo", "well"]), 30) == b"well\n"
    assert left_of(instance, state) == ["state", "tmp"]


@pytest.mark.slow
def test_two_clusters_in_one_image_leave_each_others_objects_alone(state: Path) -> None:
    specs = [f"scc:cores=2,capacity=16MiB,instance=test-{os.getpid()},core={n}" for n in (0, 1)]
    with LocalCluster(store=specs[0]) as cluster, Client(cluster) as client, client.job() as job:
        ref = job.run(["seq", "100000"])
        content = job.read(ref, 30)
        with LocalCluster(store=specs[1]) as other, Client(other) as stranger:
            with stranger.job() as another:
                assert another.read(another.run(["seq", "100000"]), 30) == content
            assert len(stranger.ask("workers")) == 1
        assert job.read(ref, 30) == content
    assert left_of(f"test-{os.getpid()}", state) == ["state", "tmp"]


def test_a_store_that_workers_cannot_share_is_refused() -> None:
    refused = {
        "scc:cores=1": "'cores=1': 2 workers need a core each; use cores=2 or more, or leave it "
        "out",
        "scc:core=0": "'core=0': it is for one worker, but there are 2; leave it out, so that each "
        "worker has its own core",
        "shm:capacity": "'shm:capacity': 'capacity' is not option=value",
        "nosuchstore": "store 'nosuchstore': not installed (there is: disk, scc, shm)",
        f"shm:instance={'a' * 64}": f"'{'a' * 64}-2': an instance is 1 to 64 letters, digits, _ "
        "and -",
    }
    for store, said in refused.items():
        with pytest.raises(ClusterOptionError) as caught:
            LocalCluster(workers=2, store=store)
        assert str(caught.value) == said


@pytest.mark.slow
@pytest.mark.parametrize(
    "store",
    ["shm", "scc:capacity=64MiB,cores=2", "shm:capacity=8MiB,instance={name},spill={state}/spill"],
)
def test_a_killed_client_leaves_no_process_and_no_file(state: Path, store: str) -> None:
    code = (
        "import ciel, sys\n"
        "cluster = ciel.LocalCluster(store=sys.argv[2])\n"
        "cluster.add_worker()\n"
        "client = ciel.Client(cluster)\n"
        "job = client.job()\n"
        "job.want([job.run(['sh', '-c', f'setsid sleep 1000 {sys.argv[1]} & sleep 1000'])])\n"
        "print(*cluster._stores.names, flush=True)\n"
        "job.wait()\n"
    )
    store = store.format(name=f"test-{os.getpid()}", state=state)
    command = [sys.executable, "-c", code, str(state), store]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as owner:
        assert owner.stdout is not None
        instances = owner.stdout.readline().decode().split()
        assert eventually(lambda: any("setsid sleep" in line for line in processes_of(state)))
        os.killpg(owner.pid, signal.SIGKILL)
    assert eventually(lambda: processes_of(state) == [])
    assert eventually(lambda: list((state / "tmp").iterdir()) == [])
    left = [Path("/dev/shm", f"ciel-{kind}{i}") for kind in ("", "scc-") for i in instances]
    assert eventually(lambda: not any(path.exists() for path in left))
    assert eventually(lambda: left_of(f"test-{os.getpid()}", state / "spill") == [])


def test_a_killed_worker_is_restarted(state: Path) -> None:
    with LocalCluster() as cluster, Client(cluster) as client, client.job() as job:
        ref = job.run(["sh", "-c", f"test -e {state}/second || sleep 1000"])
        job.want([ref])
        assert eventually(lambda: job.summary and job.summary.counts.get("assigned"))
        (state / "second").touch()
        os.kill(pid_of("worker-1", state), signal.SIGKILL)
        assert job.read(ref, 30) == b""


@pytest.mark.slow
def test_a_master_without_a_journal_ends_every_wait_with_the_end_of_its_log(state: Path) -> None:
    with LocalCluster(journal_sync=None) as cluster, Client(cluster) as client:
        job = client.job()
        threading.Timer(0.1, os.kill, (pid_of("master", state), signal.SIGKILL)).start()
        with pytest.raises(ClusterError, match="master was ended by SIGKILL") as caught:
            job.wait(WAIT_S)
        assert caught.value.log == cluster.directory / "master.log"
        assert cluster.ended.is_set()


@pytest.mark.slow
def test_using_a_closed_cluster_raises() -> None:
    with LocalCluster() as cluster, Client(cluster) as client:
        job = client.job()
        cluster.close()
        with pytest.raises(ClusterError, match=r"^the cluster is closed$"):
            job.wait(WAIT_S)
        with pytest.raises(ClusterError, match=r"^the cluster is closed$"):
            Client(cluster)


@pytest.mark.slow
def test_a_cluster_that_does_not_start_says_why(state: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        LocalCluster(store="scc:core=1")
    assert str(caught.value) == (
        "worker-1 could not start: 'core=1': the image has cores=1, numbered from 0; "
        "give its first worker more cores"
    )
    assert processes_of(state) == []
    assert list((state / "tmp").iterdir()) == []


def test_its_processes_are_shown(cluster: LocalCluster) -> None:
    assert [worker.name for worker in cluster.workers] == ["worker-1", "worker-2"]
    for daemon in (cluster.master, *cluster.workers):
        assert f"{daemon.name}.log" in Path(f"/proc/{daemon.pid}/cmdline").read_text()
        assert daemon.log.exists()
        assert str(daemon.pid) in repr(daemon)


@pytest.mark.slow
def test_a_worker_is_restarted_and_what_it_ran_runs_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    before = [worker.pid for worker in cluster.workers]
    with Client(cluster) as client, client.job() as job:
        mark = tmp_path / "again"
        ref = job.run(["sh", "-c", f"test -e {mark} || {{ touch {mark}; sleep 1000; }}"])
        job.want([ref])
        assert eventually(mark.exists)
        for number in range(2):
            cluster.restart(number)
            assert len(client.ask("workers")) == 2
        assert job.read(ref, 30) == b""
    after = [worker.pid for worker in cluster.workers]
    assert not {*before} & {*after}


@pytest.mark.slow
def test_a_worker_is_added(state: Path) -> None:
    with LocalCluster(slots=1) as cluster, Client(cluster) as client:
        added = cluster.add_worker(slots=3)
        assert sorted(worker["slots"] for worker in client.ask("workers")) == [1, 3]
        assert (added.name, cluster.worker_count) == ("worker-2", 2)
        assert "2 workers" in cluster.describe()
        with client.job() as job:
            assert job.read(job.run(["nproc"], needs=Needs(slots=3)), 30)
    assert list((state / "tmp").iterdir()) == []
    with pytest.raises(ClusterError, match="the cluster is closed"):
        cluster.add_worker()
    with pytest.raises(ClusterError, match="the cluster is closed"):
        cluster.restart(0)


def test_an_impossible_number_of_workers_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(IndexError, match="there is no worker 2: there are 2, from 0"):
        cluster.restart(2)
    with pytest.raises(IndexError, match="no worker -1"):
        cluster.restart(-1)
    with pytest.raises(ValueError, match="1 to 1024 slots, not 0"):
        cluster.add_worker(slots=0)


@pytest.mark.slow
def test_a_shared_store_has_a_fixed_number_of_cores() -> None:
    with LocalCluster(store="scc:capacity=64MiB,cores=2") as cluster:
        cluster.add_worker()
        with pytest.raises(ClusterError, match="has cores for 2 workers, and all are in use"):
            cluster.add_worker()
        assert cluster.worker_count == 2


@pytest.mark.slow
def test_a_worker_that_does_not_start_is_an_error(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match=r"worker-\d was not ready in time"):
        cluster.add_worker(timeout_s=0.01)
    with pytest.raises(ClusterError, match="worker-1 was not ready in time"):
        cluster.restart(0, timeout_s=0.01)
    assert len(cluster.workers) == 2
    for timeout_s in (0.01, 0.1):  # whether its process was launched, is known, or is ending
        with suppress(ClusterError):
            cluster.restart(0, timeout_s=timeout_s)
    cluster.restart(0)
    with Client(cluster) as client, client.job() as job:
        assert job.read(job.run(["echo", "well"])) == b"well\n"


def test_a_start_that_takes_too_long_is_given_up(state: Path) -> None:
    with pytest.raises(ClusterError, match="was not ready in time"):
        LocalCluster(start_timeout_s=0.01)
    assert processes_of(state) == []


def test_a_cluster_has_workers_and_slots() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        LocalCluster(workers=0)


def test_the_key_is_on_no_command_line_and_in_no_environment(cluster: LocalCluster) -> None:
    digits = cluster.location.key.text()
    for entry in Path("/proc").iterdir():
        for name in ("cmdline", "environ"):
            try:
                assert digits.encode() not in (entry / name).read_bytes()
            except OSError:
                continue


def test_without_a_cluster_a_client_starts_one_and_says_so(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    with Client(cluster_options={"slots": 1}) as client:
        assert len(client.ask("workers")) == 1
        assert client.cluster is not None
        directory = client.cluster.directory
    said = capsys.readouterr().err
    assert said.startswith("ciel: no cluster is configured or running")
    assert f"1 worker with 1 slot; logs in {directory}" in said
    assert json.dumps(processes_of(state)) == "[]"


@pytest.mark.slow
def test_scratch_of_failed_tasks_is_bounded_over_many_clusters(tmp_path: Path) -> None:
    kept = tmp_path / "here" / "scratch" / "worker-1"
    for age in range(KEPT_ATTEMPTS_MAX):
        (kept / f"old.{age}").mkdir(parents=True)
        os.utime(kept / f"old.{age}", (1000 - age, 1000 - age))
    with (
        LocalCluster(directory=tmp_path / "here") as cluster,
        Client(cluster) as client,
        client.job() as job,
        pytest.raises(TaskFailedError),
    ):
        job.read(job.run(["false"]))
    names = {path.name for path in kept.iterdir()}
    assert len(names) == KEPT_ATTEMPTS_MAX
    assert f"old.{KEPT_ATTEMPTS_MAX - 1}" not in names
    assert f"old.{KEPT_ATTEMPTS_MAX - 2}" in names
