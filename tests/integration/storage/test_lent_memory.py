"""Tests that a task allocates its output in the memory of another worker (POOL-4): the owner makes
the file, commits it, and frees it when its creator dies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import cloudpickle
import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa

import ciel
import ciel.arrow
from ciel.access.keys import bearer_header
from ciel.arrow.pool import why_not
from ciel.client import LocalCluster
from ciel.testing.homes import wait_for

if reason := why_not():
    pytest.skip(f"no buffers in the store here: {reason}", allow_module_level=True)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 500_000
STORES = {
    "disk": "disk",
    "shm": "shm:capacity=256MiB",
    "scc": f"scc:capacity=256MiB,cores=3,instance=lent-{os.getpid()}",
}
SMALL_BYTES = 200_000
"""Room for messages, but not for a column."""


@pytest.fixture(scope="module", params=STORES.values(), ids=list(STORES))
def client(request: pytest.FixtureRequest) -> Iterator[ciel.Client]:
    options = {"workers": 2, "slots": 1, "store": request.param}
    with ciel.Client(cluster_options=options) as client:
        yield client


def addresses(client: ciel.Client) -> list[str]:
    return sorted(row["netloc"] for row in client.ask("workers"))


def fill(at: str) -> pa.Table:
    """Make a table in the memory of a worker; its schema says how much this program has copied."""
    before = written_bytes()
    draft = ciel.arrow.empty(pa.schema({"a": pa.int64()}), ROWS, at=at)
    draft["a"][:] = np.arange(ROWS)
    table = draft.table()
    return table.replace_schema_metadata({"copied": str(written_bytes() - before)})


def written_bytes() -> int:
    counted = Path("/proc/self/io").read_text().split()
    return int(counted[counted.index("wchar:") + 1])


def total(table: pa.Table) -> int:
    return int(table["a"].to_numpy().sum())


def places(client: ciel.Client, future: Any) -> tuple[list[str], str]:
    """Return where the result of a call is, and the address of the worker that ran the call."""
    found = client.ask("object", {"object": future.object_id})
    workers = {row["worker"]: row["netloc"] for row in client.ask("workers")}
    tasks = {row["task"]: row for row in client.ask("tasks", {"job": "last"})["tasks"]}
    return found["at"], workers[tasks[found["made_by"]]["worker"]]


def lent_files(client: ciel.Client) -> dict[str, int]:
    """Return how many files for programs each worker has open, by its address."""
    found = {}
    for netloc in addresses(client):
        headers = {"Authorization": bearer_header(client.location.key)}
        with urlopen(Request(f"http://{netloc}/api/v1/counters", headers=headers)) as answer:
            found[netloc] = json.load(answer)["shmd"]["open_writes"]
    return found


@pytest.mark.requirement("POOL-4")
def test_an_output_lies_in_the_memory_of_the_worker_that_is_named(client: ciel.Client) -> None:
    elsewhere = 0
    for at in addresses(client):
        made = [client.submit(fill, at) for _ in range(4)]
        ciel.wait(made)
        for each in made:
            found, ran_at = places(client, each)
            assert found == [at]
            elsewhere += ran_at != at
        for each in made:
            assert client.submit(total, each).result() == ROWS * (ROWS - 1) // 2
            assert int(each.result().schema.metadata[b"copied"]) < SMALL_BYTES
    assert elsewhere


def two_places(first: str | None, second: str) -> pa.Table:
    ciel.arrow.memory_pool(first)
    return fill(second)


def test_an_output_is_in_one_memory(client: ciel.Client) -> None:
    one, other = addresses(client)
    with pytest.raises(ValueError, match=f"in the memory of the worker at {one} already"):
        client.submit(two_places, one, other).result()
    with pytest.raises(
        ValueError, match=r"no worker of this cluster .* '127.0.0.1:1'.*worker list"
    ):
        client.submit(fill, "127.0.0.1:1").result()


@ciel.task(retries=4)
def fill_and_die(ats: list[str]) -> pa.Table:
    attempt = ciel.current_task().attempt
    table = fill(ats[attempt % 2])
    if attempt < 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return table


@pytest.mark.requirement("POOL-4", "POOL-7")
def test_the_owner_frees_what_a_dead_creator_has_allocated(client: ciel.Client) -> None:
    assert client.submit(fill_and_die, addresses(client)).result().num_rows == ROWS
    wait_for(lambda: sum(lent_files(client).values()) == 0, "the owners free the memory")


def fill_then_wait(directory: str) -> pa.Table:
    """Make a table where a file says, and return it when there is another file."""
    table = fill(content_of(Path(directory, "at")))
    Path(directory, "filled").touch()
    content_of(Path(directory, "killed"))
    return table


def content_of(path: Path) -> str:
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()


def write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def test_a_result_is_not_lost_with_the_worker_that_has_lent_memory(tmp_path: Path) -> None:
    with LocalCluster(workers=2, slots=1) as cluster, ciel.Client(cluster) as client:
        made = client.submit(fill_then_wait, str(tmp_path))
        wait_for(lambda: any(row["running"] for row in client.ask("workers")), "the task")
        (at,) = [row["netloc"] for row in client.ask("workers") if not row["running"]]
        write(tmp_path / "at", at)
        content_of(tmp_path / "filled")
        assert sum(lent_files(client).values()) == lent_files(client)[at] == 1
        (owner,) = [daemon for daemon in cluster.workers if at in daemon.log.read_text()]
        os.kill(owner.pid, signal.SIGKILL)
        write(tmp_path / "killed", "")
        assert total(made.result()) == ROWS * (ROWS - 1) // 2
        assert "it succeeded at attempt 1" in str(client.explain(made))
