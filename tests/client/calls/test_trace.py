"""Traces, in the format that `chrome://tracing` reads."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ciel
from ciel.client.errors import ClusterError
from ciel.client.views.trace import AttemptSpan, events_of, lay_out

WAIT_S = 10.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    environ = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with ciel.Client(cluster_options={"workers": 1, "slots": 2}, environ=environ) as client:
        yield client


def nap(seconds: float) -> None:
    time.sleep(seconds)


def fail() -> None:
    raise ValueError


def read(path: Path) -> list[dict[str, Any]]:
    """Read a trace by the rules of its format ("Trace Event Format", JSON array format)."""
    events = json.loads(path.read_text())
    assert isinstance(events, list)
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert event["ph"] in ("X", "M")
        assert [type(event[key]) for key in ("pid", "tid", "name", "args")] == [int, int, str, dict]
        assert type(event["ts"]) in (int, float)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert [type(event["cat"]), type(event["dur"])] in ([str, int], [str, float])
            assert event["dur"] >= 0
            end = event["ts"] + event["dur"]
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], end))
        else:
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
    for bars in rows.values():  # complete events of a row do not overlap, or are nested
        bars.sort(key=lambda bar: (bar[0], -bar[1]))
        around: list[tuple[float, float]] = []
        for start, end in bars:
            while around and around[-1][1] <= start + 0.01:
                around.pop()
            assert not around or end <= around[-1][1] + 0.01
            around.append((start, end))
    return events


def bars_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == "X"]


def test_a_trace_has_a_bar_for_each_task_on_the_rows_of_its_worker(
    client: ciel.Client, tmp_path: Path
) -> None:
    with ciel.trace(tmp_path / "out.json"):
        futures: list[Any] = [client.submit(nap, 0.02) for _ in range(6)]
        futures.append(client.run(["true"]))
        failed = client.submit(fail)
        client.wait([*futures, failed], WAIT_S)
    events = read(tmp_path / "out.json")
    bars = bars_of(events)
    assert sorted(bar["name"] for bar in bars) == ["fail", *["nap"] * 6, "true"]
    assert {bar["name"]: bar["args"]["outcome"] for bar in bars} == {
        "nap": "done", "true": "done", "fail": "RAISED",
    }  # fmt: skip
    assert {bar["cat"] for bar in bars} == {"python", "stdinout"}
    for bar in bars:
        assert bar["args"]["attempt"] == 1
        assert bar["args"]["waited_in_line_s"] >= 0
        assert bar["args"]["waited_on_worker_s"] >= 0
        assert bar["name"] != "nap" or bar["dur"] >= 20_000
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {bar["tid"] for bar in bars} <= {1, 2}
    assert (rows[1], rows[2]) == ("slot 1", "slot 2")


def test_a_trace_of_a_block_leaves_out_earlier_attempts(
    client: ciel.Client, tmp_path: Path
) -> None:
    client.run(["true"]).result(WAIT_S)
    with ciel.trace(tmp_path / "of-a-while.json", client):
        client.run(["echo"]).result(WAIT_S)
    assert [bar["name"] for bar in bars_of(read(tmp_path / "of-a-while.json"))] == ["echo"]
    ciel.trace(tmp_path / "of-all.json")
    names = [bar["name"] for bar in bars_of(read(tmp_path / "of-all.json"))]
    assert names[-2:] == ["true", "echo"]


def test_a_trace_includes_running_attempts(client: ciel.Client, tmp_path: Path) -> None:
    with ciel.trace(tmp_path / "out.json"):
        future = client.run(["sleep", "60"])
        until_s = time.monotonic() + WAIT_S
        while client.explain(future).state != "running" and time.monotonic() < until_s:
            time.sleep(0.01)
    future.cancel()
    (bar,) = bars_of(read(tmp_path / "out.json"))
    assert (bar["name"], bar["args"]["outcome"]) == ("sleep", "running")


def test_a_trace_includes_a_client_that_is_closed_meanwhile(
    client: ciel.Client, tmp_path: Path
) -> None:
    with ciel.trace(tmp_path / "out.json"), ciel.Client(client.cluster) as other:
        other.run(["true"]).result(WAIT_S)
    assert "true" in [bar["name"] for bar in bars_of(read(tmp_path / "out.json"))]


@pytest.mark.slow
def test_a_trace_leaves_out_a_client_that_has_lost_its_cluster(
    client: ciel.Client, tmp_path: Path
) -> None:
    options = {"slots": 1, "journal_sync": None}
    with ciel.Client(cluster_options=options, environ={"XDG_STATE_HOME": str(tmp_path)}) as other:
        assert other.cluster is not None
        os.kill(other.cluster.master.pid, signal.SIGKILL)
        with pytest.raises(ClusterError):
            other.ask("status")
        client.run(["true"]).result(WAIT_S)
        ciel.trace(tmp_path / "out.json")
        with pytest.raises(ClusterError):
            ciel.trace(tmp_path / "other.json", other)
    assert "true" in [bar["name"] for bar in bars_of(read(tmp_path / "out.json"))]


def test_a_trace_without_clients_is_empty_and_valid(tmp_path: Path) -> None:
    from unittest import mock

    with mock.patch("ciel.python.sessions._open", []):
        ciel.trace(tmp_path / "out.json")
    assert read(tmp_path / "out.json") == []
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


# --- rows -----------------------------------------------------------------------------------------


def attempt(name: str, ended_at_s: float | None, run_s: float, **more: Any) -> AttemptSpan:
    usual = AttemptSpan("job", name, name, "python", "", 1, "w", 1, 0.5, 1.0, ended_at_s, run_s, "")
    return usual._replace(**more)


def test_attempts_whose_ends_were_reported_together_do_not_overlap() -> None:
    told = [attempt(name, 10.0, 1.0) for name in "abcd"]
    bars = lay_out(told, 2, 11.0)
    assert [(bar.row, bar.start_s, bar.end_s) for bar in bars] == [
        (1, 8.0, 9.0), (0, 8.0, 9.0), (1, 9.0, 10.0), (0, 9.0, 10.0),
    ]  # fmt: skip


def test_a_child_within_its_parent_lies_within_it() -> None:
    told = [
        attempt("child", 5.0, 1.0, parent="parent", slots=0),
        attempt("late", 9.0, 1.0, parent="parent", slots=0),
        attempt("parent", 6.0, 4.0),
        attempt("other", None, 2.0),
    ]
    bars = {bar.attempt.task: bar[1:] for bar in lay_out(told, 2, 7.0)}
    assert bars == {
        "other": (0, 5.0, 7.0), "parent": (1, 2.0, 6.0), "child": (1, 4.0, 5.0),
        "late": (1, 6.0, 6.0),
    }  # fmt: skip


def test_each_worker_is_a_process_with_its_slots() -> None:
    told = [attempt("a", 2.0, 1.0), attempt("b", 3.0, 1.5, worker="v")]
    events = events_of(told, {"w": 2, "v": 1}, 4.0)
    named = [(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"]
    assert named == [(1, 0, "worker v"), (1, 1, "slot 1"), (2, 0, "worker w"), (2, 1, "slot 1"),
                     (2, 2, "slot 2")]  # fmt: skip
    assert [(bar["pid"], bar["ts"], bar["dur"]) for bar in bars_of(events)] == [
        (1, 500_000, 1_500_000), (2, 0, 1_000_000),
    ]  # fmt: skip
