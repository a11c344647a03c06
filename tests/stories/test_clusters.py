"""Checks the messages that a user sees when workers are lost, when no worker can run a task, and
when another user cancels a job; and the explanations of tasks in every state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ciel
from ciel.client.errors import TaskFailedError
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.clusters.stories import Stage, Transcript

POISON = """#!/bin/sh
read -r _ _ _ launcher _ </proc/$$/stat
read -r _ _ _ worker _ </proc/$launcher/stat
kill -KILL $worker
sleep 60
"""


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory, typed: Any) -> Iterator[Stage]:
    """Start a cluster whose workers of one slot come and go."""
    stage = Stage(HandCluster.start(Home(tmp_path_factory.mktemp("sparse")), 0), typed)
    stage.add({"poison": POISON, "words.txt": "a b c\n" * 1000})
    yield stage
    stage.cluster.stop()
    assert not stage.home.processes()


def have_worker(stage: Stage) -> None:
    """Start a worker unless one is running."""
    if all(worker.poll() is not None for worker in stage.cluster.workers):
        stage.cluster.start_worker()


def lose_worker(stage: Stage) -> None:
    """Wait until the last worker is dead and the master knows it."""
    stage.cluster.workers[-1].wait(timeout=20)
    seen = [""]

    def is_known() -> bool:
        seen.append("".join(map(str, stage.run("status"))))
        return "no workers" in seen[-1]

    try:
        wait_for(is_known, "the loss to be known")
    except AssertionError as error:
        error.add_note(f"the last of {len(seen) - 1} times, `ciel status` said: {seen[-1]}")
        raise


def explained(stage: Stage, task: str, state: str) -> None:
    """Wait until a task is in a state."""
    wait_for(
        lambda: f"is {state}\n" in stage.run("task", "explain", task)[1],
        f"to be {state}",
    )


@pytest.mark.slow
def test_a_task_that_loses_its_workers(sparse: Stage) -> None:
    home, cluster = sparse.home, sparse.cluster
    submitted = home.start("ciel", "submit", "--name", "poison", "--", "./poison")
    wait_for(lambda: "poison" in sparse.run("job", "list")[1], "the job to be there")
    sparse.tell("ciel task explain last").expect("explain-no-worker")
    cluster.start_worker()
    lose_worker(sparse)
    sparse.tell("ciel status", "ciel task explain last").expect("explain-worker-lost")
    for _ in range(2):
        cluster.start_worker()
        lose_worker(sparse)
    transcript = Transcript(sparse.places())
    output, said = submitted.communicate(timeout=20)
    transcript.note("ciel submit --name poison -- ./poison", submitted.returncode, output, said)
    transcript.expect("workers-lost")
    sparse.tell("ciel task explain last").expect("explain-workers-lost")


@pytest.mark.slow
def test_a_program_that_fails_on_its_own_temporary_cluster(tmp_path: Path) -> None:
    home = Home(tmp_path)
    done = home.run("ciel", "submit", "--", "sh", "-c", "exit 2")
    transcript = Transcript({str(tmp_path): "HOME"})
    transcript.note("ciel submit -- sh -c 'exit 2'", done.returncode, done.stdout, done.stderr)
    transcript.expect("own-cluster")
    home.expect_nothing_left()


@pytest.mark.slow
def test_an_upload_that_is_lost_with_its_only_worker(sparse: Stage) -> None:
    home, cluster = sparse.home, sparse.cluster
    cluster.start_worker()
    with ciel.Client(environ=home.environ) as client, client.job("words") as job:
        words = client.upload(home.path / "words.txt")
        cluster.workers[-1].kill()
        lose_worker(sparse)
        cluster.start_worker()
        count = job.run(["wc", "-w"], inputs=[words], name="count")
        job.want([count])
        with pytest.raises(TaskFailedError) as caught:
            job.result(count)
        transcript = Transcript(sparse.places())
        transcript.note("job.result(count)", 0, "", f"{caught.value}\n")
        transcript.expect("upload-lost")
    cluster.workers[-1].kill()
    lose_worker(sparse)


@pytest.mark.slow
def test_a_job_that_another_command_cancels(stage: Stage) -> None:
    submitted = stage.home.start("ciel", "submit", "--name", "endless", "--", "sleep", "60")
    wait_for(lambda: "endless" in stage.run("job", "list")[1], "the job to be there")
    transcript = stage.tell("ciel job cancel last")
    output, said = submitted.communicate(timeout=20)
    transcript.note("ciel submit -- sleep 60", submitted.returncode, output, said)
    transcript.expect("cancelled")
    stage.tell("ciel job info last", "ciel task explain last").expect("explain-cancelled")
    stage.tell("ciel task explain last:4711").expect("unknown-task")


def test_a_key_of_another_cluster(stage: Stage) -> None:
    known = json.loads(stage.cluster.access.read_text())
    other = stage.home.path / "other.json"
    other.write_text(json.dumps({**known, "key": "0" * len(known["key"])}))
    other.chmod(0o600)
    stage.tell("ciel status --access other.json").expect("wrong-key")


# --- explanations ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_explanations_of_tasks_that_wait_and_run(sparse: Stage) -> None:
    home = sparse.home
    have_worker(sparse)
    with ciel.Client(environ=home.environ) as client:
        job = client.job("report", detached=True)
        fetch = job.run(["sleep", "60"], name="fetch")
        sort = job.run(["sort"], inputs=[fetch], name="sort")
        count = job.run(["uniq", "-c"], inputs=[sort], name="count")
        job.run(["uniq"], inputs=[sort], name="aside")
        job.want([count])
        job.close()
    explained(sparse, "last:fetch", "running")
    sparse.tell("ciel task explain last").expect("explain-a-chain")
    sparse.run("submit", "--detach", "--array", "1-40", "--", "true")
    explained(sparse, "last:40", "runnable")
    sparse.tell("ciel task explain last:1", "ciel task explain last:40").expect("explain-no-room")
    sparse.run("job", "cancel", "all")
    sparse.run("job", "wait", "all")


def test_explanations_of_tasks_that_ended(sparse: Stage) -> None:
    home = sparse.home
    have_worker(sparse)
    sparse.run("submit", "--detach", "--", "echo", "done")
    sparse.run("job", "wait", "last")
    sparse.tell("ciel task explain last").expect("explain-done")
    with ciel.Client(environ=home.environ) as client:
        job = client.job("report", detached=True)
        fetch = job.run(["cat", "/no/words"], name="fetch")
        sort = job.run(["sort"], inputs=[fetch], name="sort")
        count = job.run(["uniq", "-c"], inputs=[sort], name="count")
        job.want([count])
        job.close()
    sparse.run("job", "wait", "last")
    shown = (
        "job info last",
        "task list last",
        "task explain last:fetch",
        "task explain last:count",
    )
    sparse.tell(*[f"ciel {words}" for words in shown]).expect("explain-failed")
    sparse.add(
        {"my.sw": "x = spawn_exec('stdinout', {'command_line': ['echo', '7']}, 1);\nreturn *x[0];"}
    )
    sparse.run("sw", "my.sw")
    sparse.tell("ciel task explain last:1").expect("explain-a-script")
    sparse.run("submit", "--detach", "--retries", "9", "--", "sh", "-c", "exit 4")
    transcript = Transcript(sparse.places())

    def waits() -> bool:
        transcript.parts = [sparse.run("task", "explain", "last")[1]]
        return "attempt 2 failed; the task is retried in " in transcript.parts[0]

    wait_for(waits, "a second failure")
    sparse.run("job", "cancel", "last")
    transcript.expect("explain-back-off")
