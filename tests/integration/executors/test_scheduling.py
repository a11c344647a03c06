"""Tests scheduling options of a job on real daemons, on one cluster of two slots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel import Client
from ciel.client.cluster import LocalCluster
from ciel.client.errors import TaskFailedError
from ciel.client.jobs import Job
from ciel.core.refs import Reference
from ciel.core.scheduling import read_scheduling
from ciel.core.tasks import Needs

WITHIN_S = 30.0
GIB = 1 << 30


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("scheduling")
    cluster = LocalCluster(workers=2, slots=1, directory=directory)
    with cluster, Client(cluster) as client:
        yield client


def shell(job: Job, script: str, **needs: object) -> Reference:
    return job.run(["sh", "-c", script], needs=Needs(**needs))  # type: ignore[arg-type]  # of their kinds


def memory_offered(client: Client) -> int:
    return int(client.ask("status")["workers"][0]["memory_bytes"])


def explained(client: Client, job: Job, ref: Reference) -> list[str]:
    lines: list[str] = client.ask("task", {"object": ref.id})["why"]
    return lines


def test_the_workers_of_a_cluster_divide_the_memory_of_the_host(client: Client) -> None:
    first, second = client.ask("status")["workers"]
    assert first["memory_bytes"] == second["memory_bytes"] > 1 << 26


def test_tasks_that_ask_for_all_the_memory_run_one_at_a_time_on_a_worker(
    client: Client, tmp_path: Path
) -> None:
    whole = memory_offered(client)
    work = (
        f"mkdir {tmp_path}/$CIEL_WORKER || echo overlap; sleep 0.05; rmdir {tmp_path}/$CIEL_WORKER"
    )
    with client.job() as job:
        made = [shell(job, work, memory_bytes=whole) for _ in range(6)]
        modest = shell(job, "echo modest")
        job.want([*made, modest])
        assert [job.read(ref, WITHIN_S) for ref in made] == [b""] * 6
        assert job.read(modest, WITHIN_S) == b"modest\n"


def test_a_task_that_needs_more_memory_than_any_worker_has_fails_with_the_reason(
    client: Client,
) -> None:
    job = client.job()
    ref = shell(job, "true", memory_bytes=memory_offered(client) + 1)
    with pytest.raises(TaskFailedError, match=r"asks for .* of memory, and no worker offers more"):
        job.read(ref, WITHIN_S)
    job.cancel()


@pytest.mark.parametrize("policy", ["random", "tworandom"])
def test_a_job_may_have_its_own_policy(client: Client, policy: str) -> None:
    with client.job(scheduling=read_scheduling(policy)) as job:
        made = [shell(job, f"echo {number}") for number in range(5)]
        job.want(made)
        for number, ref in enumerate(made):
            assert job.read(ref, WITHIN_S) == f"{number}\n".encode()
        why = explained(client, job, made[0])
    assert any(f"the policy {policy} drew this worker" in line for line in why)


def test_the_explanation_of_a_placement_contains_its_cost(client: Client) -> None:
    with client.job(scheduling=read_scheduling("locality", {"sweetheart_factor": 5})) as job:
        stored = shell(job, "head -c 2000000 /dev/zero")
        assert len(job.read(stored, WITHIN_S)) == 2000000
        reader = job.run(["wc", "-c"], inputs=[stored])
        assert job.read(reader, WITHIN_S) == b"2000000\n"
        why = explained(client, job, reader)
    assert any("has all inputs" in line and "(policy locality)" in line for line in why), why


def test_a_job_of_a_higher_priority_and_a_short_one_overtake_a_long_one(
    client: Client, tmp_path: Path
) -> None:
    go, order = tmp_path / "go", tmp_path / "order"

    def work(name: str) -> str:
        return f"while [ ! -e {go} ]; do sleep 0.01; done; echo {name} >> {order}"

    with client.job("long") as long, client.job("short") as short, client.job("high") as high:
        made = [shell(long, work(f"long{number}")) for number in range(300)]
        long.want(made)
        others = [shell(short, work("short")), shell(high, work("high"), priority=5)]
        short.want(others[:1])
        high.want(others[1:])
        client.ask("status")  # all tasks have arrived
        go.touch()
        for ref in made:
            long.read(ref, WITHIN_S)
        short.read(others[0], WITHIN_S)
        high.read(others[1], WITHIN_S)
    came = order.read_text().split()
    assert len(came) == 302
    # Each worker had prefetched some tasks, which a priority passes, as does the first task of a
    # job.
    assert max(came.index("high"), came.index("short")) < 20


def test_only_failures_of_the_named_kinds_are_retried(client: Client, tmp_path: Path) -> None:
    count = f"echo x >> {tmp_path}/$0; exit 3"
    needs = {"retries": 2, "retry_delay_s": 0.01}
    tries = {"RUNTIME_EXCEPTION": 3, "TIMED_OUT": 1}
    job = client.job()
    for kind in tries:
        ref = job.run(["sh", "-c", count, kind], needs=Needs(**needs, retry_on=(kind,)))  # type: ignore[arg-type]  # of their kinds
        with pytest.raises(TaskFailedError, match=r"attempt \d of 3"):
            job.read(ref, WITHIN_S)
    job.cancel()
    assert {k: (tmp_path / k).read_text().count("x") for k in tries} == tries
