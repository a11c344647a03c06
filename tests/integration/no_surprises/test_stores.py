"""Tests stores that are small, full or removed, as users of Python calls meet them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

import ciel
from ciel.storage.trees import remove_tree
from ciel.testing.homes import Home
from ciel_tests.clusters.mounts import on_mount

MIB = 1 << 20
STALL_S = 8.0  # a wait for room that cannot be freed takes ten

SMALL = ["-t", "tmpfs", "-o", "size=36m,mode=1777", "none"]
WRITES_MUCH = """
from ciel.client.errors import TaskFailedError
import ciel
MIB = 1 << 20
with ciel.LocalCluster(slots=2, store="{store}") as cluster, ciel.Client(cluster) as client:
    for number in range(3):
        with client.job("much") as job:
            made = job.run(["head", "-c", str(6 * MIB), "/dev/zero"])
            job.want([made])
            try:
                print(len(job.read(made, timeout_s=60)) // MIB)
            except TaskFailedError as error:
                print(error.failure.reason)
"""


def make(number: int) -> bytes:
    return bytes([number]) * 4 * MIB


def seconds_for(store: str) -> float:
    """Let two workers produce 24 results of 4 MiB; return the time that this took."""
    cluster = ciel.LocalCluster(workers=2, slots=1, store=store)
    with cluster, ciel.Client(cluster) as client:
        begun_s = time.monotonic()
        futures = [client.submit(make, number) for number in range(24)]
        results = [future.result() for future in futures]
        took_s = time.monotonic() - begun_s
    assert [result[:1] for result in results] == [bytes([number]) for number in range(24)]
    assert all(result == make(number) for number, result in enumerate(results))
    return took_s


@pytest.mark.slow
def test_results_that_do_not_fit_into_an_image_are_nearly_as_fast() -> None:
    ample_s = seconds_for("scc:capacity=256MiB")
    assert seconds_for("scc:capacity=32MiB") < ample_s + STALL_S


def run_small(home: Home, store: str) -> list[str]:
    words = [sys.executable, "-c", WRITES_MUCH.format(store=store)]
    done = home.run(*on_mount(SMALL, Path("/dev/shm"), words))
    assert not home.processes()
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_results_are_written_to_disk_if_the_device_of_an_image_is_full(
    home: Home,
) -> None:
    assert run_small(home, "scc:capacity=32MiB") == ["6", "6", "6"]


@pytest.mark.slow
def test_without_a_disk_a_full_device_raises_no_space(home: Home) -> None:
    assert run_small(home, "scc:capacity=32MiB,spill=no") == ["NO_SPACE"] * 3


def lengths(*parts: bytes) -> list[int]:
    return [len(part) // MIB for part in parts]


def read_six(store: str) -> list[int]:
    """Let two workers produce three objects of 4 MiB each, and one of them read all."""
    cluster = ciel.LocalCluster(workers=2, slots=1, store=store)
    with cluster, ciel.Client(cluster) as client:
        made = [client.submit(make_slowly, number) for number in range(6)]
        ciel.wait(made)
        return client.submit(lengths, *made).result()


@pytest.mark.slow
def test_inputs_that_do_not_fit_are_fetched_to_disk_or_raise_no_space() -> None:
    assert read_six("shm:capacity=20MiB") == [4] * 6
    with pytest.raises(ciel.TaskError) as found:
        read_six("shm:capacity=20MiB,spill=no")
    assert found.value.reason == "NO_SPACE"
    assert "its inputs do not fit into the store of worker" in str(found.value)


def make_slowly(number: int) -> bytes:
    time.sleep(0.3)
    return bytes([number]) * 4 * MIB


def dig(depth: int) -> None:
    """Create nested directories, and fail."""
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    os._exit(3)


def leave() -> None:
    os._exit(4)


@pytest.mark.slow
def test_deep_directories_of_one_task_do_not_harm_later_tasks(tmp_path: Path) -> None:
    cluster = ciel.LocalCluster(slots=1, directory=tmp_path)
    with cluster, ciel.Client(cluster, scratch=True) as client:
        for function, words in ((dig, (3000,)), (leave, ()), (leave, ())):
            with pytest.raises(ciel.TaskError, match="its files are kept in"):
                client.submit(function, *words).result()
    # includes the deep one, if it need not be copied
    assert len(list(tmp_path.glob("scratch/*/*"))) >= 2
    remove_tree(tmp_path / "scratch")  # pytest would remove it by recursion


@pytest.mark.slow
@pytest.mark.parametrize("store", ["disk", "shm", "scc:capacity=16MiB"])
def test_a_worker_whose_store_was_removed_ends_without_failing_a_task(store: str) -> None:
    cluster = ciel.LocalCluster(slots=1, store=store)
    with cluster, ciel.Client(cluster) as client:
        assert client.submit(make, 1).result() == make(1)
        (before,) = [daemon.pid for daemon in cluster.workers]
        removed = [Path(text) for text in open_directories(before) if text.endswith("incoming")]
        assert removed
        for incoming in removed:
            shutil.rmtree(incoming.parent)
        assert client.submit(make, 2).result() == make(2)
        (after,) = [daemon.pid for daemon in cluster.workers]
        assert after != before
        logs = (cluster.directory / "worker-1.log").read_text()
    assert "was removed or replaced" in logs


def open_directories(pid: int) -> list[str]:
    """Return the paths behind the descriptors of a process."""
    return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]


def use_loky() -> str:
    """Compute in processes of joblib, which it keeps, and create a temporary file."""
    from joblib import Parallel, delayed

    assert sum(Parallel(n_jobs=2, backend="loky")(delayed(abs)(n) for n in range(10))) == 45
    handle, path = tempfile.mkstemp(prefix="left-by-a-task-")
    os.close(handle)
    return path


@pytest.mark.slow
def test_a_task_with_processes_of_joblib_leaves_nothing(tmp_path: Path) -> None:
    def left() -> set[str]:
        """Return the names of joblib's files whose creating process has ended."""
        made = {name for name in os.listdir("/dev/shm") if "loky" in name or "joblib" in name}
        return {
            n for n in made if not any(Path("/proc", p).exists() for p in re.findall(r"\d+", n))
        }

    before = left()
    cluster = ciel.LocalCluster(slots=1, directory=tmp_path)
    with cluster, ciel.Client(cluster) as client:
        path = Path(client.submit(use_loky).result())
    assert left() <= before
    assert not path.exists()
