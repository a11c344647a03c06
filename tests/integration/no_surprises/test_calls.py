"""Tests expectations of pool users for calls: a call reads the values at the moment of the call and
changes only copies, and data sent for it does not stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import io
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter as Multiset
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest

import ciel
from ciel.core.errors import CielError
from ciel.multiprocessing import Pool
from ciel.testing.homes import wait_for

cloudpickle.register_pickle_by_value(sys.modules[__name__])

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ciel.LocalCluster]:
    with ciel.LocalCluster(workers=1, slots=2) as found:
        yield found


@pytest.fixture(scope="module")
def client(cluster: ciel.LocalCluster) -> Iterator[ciel.Client]:
    with ciel.Client(cluster, environ={}) as found:
        yield found


class Counter:
    total = 0

    def __init__(self) -> None:
        self.n = 0

    def inc(self) -> int:
        self.n += 1
        return self.n


settings: dict[str, int] = {"rate": 1}
counter = Counter()
seen: list[int] = []


def rate(_: int) -> int:
    return settings["rate"]


def in_class(_: int) -> int:
    Counter.total += 1
    return Counter.total


def sees(number: int) -> list[int]:
    seen.append(number)
    return seen


# --- values at the moment of the call -------------------------------------------------------------

WAYS: dict[str, Callable[[ciel.Client, Any], Any]] = {
    "submit": lambda client, f: client.submit(f, 0).result(WITHIN_S),
    "map": lambda client, f: next(client.map(f, [0])),
    "executor": lambda client, f: ciel.Executor(client=client).submit(f, 0).result(WITHIN_S),
    "limited executor": lambda client, f: ciel.Executor(1, client=client).submit(f, 0).result(60),
    "pool": lambda client, f: Pool(client=client).apply(f, (0,)),
    "pool's map": lambda client, f: Pool(client=client).map(f, [0])[0],
    "task": lambda client, f: ciel.task(f).spawn(0).result(WITHIN_S),
    "spawn": lambda client, f: ciel.spawn(f, 0).result(WITHIN_S),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_call_uses_the_values_at_the_moment_of_the_call(client: ciel.Client, way: str) -> None:
    for number in (1, 2, 3):
        settings["rate"] = number
        assert WAYS[way](client, rate) == number


def test_a_queued_call_uses_the_values_at_the_moment_of_the_call(client: ciel.Client) -> None:
    futures = []
    for number in range(50):
        settings["rate"] = number
        futures.append(client.submit(rate, 0))
    assert client.gather(futures) == list(range(50))


def test_a_spawn_uses_the_values_at_the_moment_of_the_spawn(client: ciel.Client) -> None:
    def parent() -> list[int]:
        first = [ciel.spawn(rate, 0), ciel.spawn(rate, 0)]
        settings["rate"] = 70
        return ciel.gather([*first, ciel.spawn(rate, 0)])

    settings["rate"] = 7
    assert client.submit(parent).result(WITHIN_S) == [7, 7, 70]


def test_backends_of_joblib_and_dask_use_current_values(client: ciel.Client) -> None:
    dask, joblib = pytest.importorskip("dask"), pytest.importorskip("joblib")
    for number in (1, 2):
        settings["rate"] = number
        with joblib.parallel_config("ciel"):
            assert (
                joblib.Parallel(n_jobs=2)(joblib.delayed(rate)(x) for x in (0, 1)) == [number] * 2
            )
        delayed = dask.delayed(rate)(0)
        assert dask.compute(delayed, scheduler=ciel.dask.get) == (number,)


def test_each_call_of_a_bound_method_has_its_own_object(client: ciel.Client) -> None:
    assert [client.submit(counter.inc).result(WITHIN_S) for _ in range(4)] == [1, 1, 1, 1]
    assert client.gather([client.submit(counter.inc) for _ in range(100)]) == [1] * 100


@pytest.mark.parametrize(
    "function, expected", [(in_class, [1] * 4), (sees, [[n] for n in range(4)])]
)
def test_rows_of_a_map_do_not_see_each_others_changes(
    client: ciel.Client, function: Any, expected: list[Any]
) -> None:
    assert list(client.map(function, range(4), chunksize=4)) == expected


def test_each_row_of_a_map_has_its_own_copy_of_a_shared_argument(client: ciel.Client) -> None:
    def append(number: int, to: list[int], also: Any) -> tuple[list[int], float]:
        to.append(number)
        also[0] += 1
        return to, float(also[0])

    array = client.put(np.zeros(100_000))
    rows = client.map(append, range(3), itertools.repeat([]), itertools.repeat(array), chunksize=3)
    assert list(rows) == [([number], 1.0) for number in range(3)]


def test_attributes_of_a_module_last_as_long_as_the_process(client: ciel.Client) -> None:
    def count(_: int) -> tuple[int, int]:
        sys.ciel_count = getattr(sys, "ciel_count", 0) + 1  # type: ignore[attr-defined]  # own
        return os.getpid(), sys.ciel_count  # type: ignore[attr-defined]  # set by this test

    found = list(client.map(count, range(20), chunksize=10))
    assert max(number for _, number in found) >= 10


# --- arguments and results that are written to ----------------------------------------------------


def doubled_in_place(array: Any) -> float:
    array *= 2
    return float(array.sum())


def assigned(frame: Any) -> int:
    frame.loc[0, "a"] = 7
    return int(frame["a"].sum())


@pytest.mark.parametrize("count", [2, 20_000, 2_000_000])
def test_arguments_may_be_written_to(client: ciel.Client, count: int) -> None:
    ones = np.ones(count)
    stored = client.put(ones)
    made = client.submit(np.ones, count)
    calls: list[Any] = [client.submit(doubled_in_place, a) for a in (ones, stored, made, stored)]
    calls.append(ciel.Executor(client=client).submit(doubled_in_place, ones))
    assert [call.result(WITHIN_S) for call in calls] == [2 * count] * 5
    assert (stored.result().sum(), made.result().sum(), ones.sum()) == (count, count, count)


def test_a_small_frame_may_be_assigned_to(client: ciel.Client) -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    with Pool(client=client) as pool:
        assert (
            pool.apply(assigned, (frame,)) == client.submit(assigned, frame).result(WITHIN_S) == 9
        )


def test_a_dask_graph_may_assign(client: ciel.Client) -> None:
    pytest.importorskip("dask")
    graph = {"one": (np.ones, 100_000), "two": (doubled_in_place, "one"), "sum": (np.sum, "one")}
    found = ciel.dask.get(graph, ["two", "sum"], client=client, optimize_graph=False)
    assert found == (200_000, 100_000)


def test_the_result_of_a_child_may_be_written_to(client: ciel.Client) -> None:
    def parent() -> tuple[float, float]:
        made = ciel.spawn(np.ones, 50_000)
        array = made.result()
        array += 1
        return float(array.sum()), ciel.spawn(np.sum, made).result()

    assert client.submit(parent).result(WITHIN_S) == (100_000, 50_000)


# --- exceptions that end a program ----------------------------------------------------------------


@pytest.mark.parametrize(
    "raised, text",
    [
        (SystemExit(0), r"sys\.exit\(0\)"),
        (SystemExit("stop"), r"sys\.exit\('stop'\)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
    ],
)
def test_exceptions_that_end_a_program_do_not_end_the_client(
    client: ciel.Client, raised: BaseException, text: str
) -> None:
    def ends(_: int) -> None:
        raise raised

    with pytest.raises(ciel.RemoteError, match=text) as caught:
        client.submit(ends, 0).result(WITHIN_S)
    assert caught.value.kind == type(raised).__name__
    with pytest.raises(ciel.TaskError, match=text):
        list(client.map(ends, [0]))
    assert client.submit(abs, -1).result(WITHIN_S) == 1


# --- what can be sent, and errors if it cannot ----------------------------------------------------


@functools.lru_cache(maxsize=100)
def fib(number: int) -> int:
    return number if number < 2 else fib(number - 1) + fib(number - 2)


class Circle:
    def __init__(self, radius: float) -> None:
        self.radius = radius

    @functools.cached_property
    def area(self) -> float:
        return 3 * self.radius**2


def uses_both(circle: Circle) -> tuple[float, float, int, int | None]:
    return circle.area, circle.area, fib(30), fib.cache_info().maxsize


def test_cached_functions_and_properties_can_be_sent(client: ciel.Client) -> None:
    assert client.submit(uses_both, Circle(2)).result(WITHIN_S) == (12, 12, 832_040, 100)


lock = threading.Lock()


def locks() -> Any:
    return lock


def uses_lock() -> Any:
    return locks()


def test_the_error_names_the_value_that_cannot_be_sent(client: ciel.Client) -> None:
    class Holder:
        def __init__(self) -> None:
            self.inner = {"locks": [lock]}

    def default(holder: Any = Holder()) -> Any:  # noqa: B008
        return holder

    for function, path in (
        (uses_lock, "its global variable locks: its global variable lock"),
        (default, r"the default of its parameter holder\.inner\['locks'\]\[0\]"),
        (functools.partial(print, end=Holder()), r"keywords\['end'\]\.inner\['locks'\]\[0\]"),
    ):
        with pytest.raises(ciel.PackingError, match=f"{path} _thread.lock cannot be pickled"):
            client.submit(function)


# --- values that are released ---------------------------------------------------------------------


def first_of(array: Any, _: int) -> tuple[float, int, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(array[0]), os.getpid(), pages * os.sysconf("SC_PAGE_SIZE")


def stored_bytes(root: Path) -> int:
    found = 0
    for path in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it is being deleted
            found += path.stat().st_blocks * 512 if path.is_file() else 0
    return found


@pytest.mark.slow
def test_captured_values_of_functions_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    count = 200 if os.environ.get("CIEL_LONG") == "1" else 6
    with (
        ciel.LocalCluster(workers=1, slots=2, store="disk") as up,
        ciel.Client(up, environ={}) as client,
    ):
        most = 0
        for number in range(count):
            function = functools.partial(first_of, np.full(2_500_000, float(number)))
            for value, _, size_bytes in client.map(function, range(2)):
                assert value == number
                most = max(most, size_bytes)
        assert most < 200 << 20
        assert stored_bytes(tmp_path) >= 20_000_000  # it searches the right directory
        del function
        gc.collect()

        def is_released() -> bool:
            client.submit(abs, -1).result(WITHIN_S)
            time.sleep(0.05)
            return stored_bytes(tmp_path) < 10 << 20

        wait_for(is_released, "the end of the objects that functions were")


# --- calls of a killed process --------------------------------------------------------------------


def test_calls_of_a_killed_process_run_again_and_this_is_reported(
    cluster: ciel.LocalCluster, tmp_path: Path
) -> None:
    log, mark = tmp_path / "log", tmp_path / "mark"

    def note(number: int) -> int:
        with log.open("a") as file:
            file.write(f"{number} {os.getpid()}\n")
        if number == 500 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    told = io.StringIO()
    with ciel.Client(cluster, environ={}, prints=told) as client:
        client.submit(note, -1).result(WITHIN_S)  # quick, so that calls are bundled
        futures = [client.submit(note, number) for number in range(1000)]
        assert [future.result(WITHIN_S) for future in futures] == list(range(1000))
        wait_for(
            lambda: "all calls that it ran run again" in told.getvalue(), "what is said of that"
        )
    assert "was killed by SIGKILL" in told.getvalue()
    ran = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    dead = next(pid for number, pid in ran if number == 500)
    counts = Multiset(number for number, _ in ran)
    begun = {number for number, pid in ran if pid == dead}
    assert {number for number, count in counts.items() if count > 1} <= begun
    assert max(counts.values()) == 2


@pytest.mark.slow
def test_dropped_values_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        ciel.LocalCluster(workers=1, slots=1, store="disk") as up,
        ciel.Client(up, environ={}) as client,
        ciel.Client(up, environ={}) as other,
    ):
        unused = client.put(np.ones(1_000_000))
        inner = client.put(np.ones(1_000_000))
        outer = client.put([inner])
        shared = client.put(np.ones(1_000_000))
        assert stored_bytes(tmp_path) >= 24_000_000
        total = other.submit(np.sum, shared)
        del unused, inner, shared
        wait_for(lambda: stored_bytes(tmp_path) < 24_000_000, "the end of one value")
        assert total.result(WITHIN_S) == 1_000_000
        assert client.submit(lambda found: found[0].result().sum(), outer).result(WITHIN_S) == 1e6
        del outer, total
        # A value that another client names stays as long as that client's job.
        wait_for(lambda: stored_bytes(tmp_path) < 9 << 20, "the end of all values but one")


# --- many small inputs ----------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_small_values_are_inputs_of_one_call(client: ciel.Client) -> None:
    values = [client.put(os.urandom(700)) for _ in range(10_000)]
    assert client.submit(len, values).result(60) == 10_000


@pytest.mark.slow
def test_a_call_that_exceeds_a_message_is_refused_with_a_reason(client: ciel.Client) -> None:
    values = [client.put(os.urandom(740)) for _ in range(15_000)]
    refused = client.submit(len, values)
    served = client.submit(abs, -1)
    with pytest.raises(
        CielError, match="which may have at most 15 MiB: put small objects together"
    ):
        refused.result(60)
    assert served.result(60) == 1


# --- event loops within a function ----------------------------------------------------------------


async def squares_and_ticks() -> tuple[list[int], int]:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    far = ciel.task(slow_square, retries=1)  # it does not run in the process of its parent
    found = await asyncio.gather(*[far.spawn(number) for number in range(4)], far.spawn(5))
    near = await ciel.spawn(slow_square, 6)
    async with asyncio.timeout(20):
        with pytest.raises(ZeroDivisionError):
            await ciel.task(lambda: 1 // 0, retries=1).spawn()
    ticking.cancel()
    return [*found, near], ticks


def slow_square(number: int) -> int:
    time.sleep(0.05)
    return number * number


def runs_a_loop() -> tuple[list[int], int]:
    return asyncio.run(squares_and_ticks())


async def runs_a_function_with_a_loop() -> tuple[list[int], int]:
    return await ciel.spawn(runs_a_loop)


@pytest.mark.parametrize("function", [runs_a_loop, runs_a_function_with_a_loop])
def test_an_event_loop_within_a_function_can_await_tasks(
    client: ciel.Client, function: Callable[[], tuple[list[int], int]]
) -> None:
    found, ticks = client.submit(function).result(WITHIN_S)
    assert found == [0, 1, 4, 9, 25, 36]
    assert ticks > 0


# --- processes that a task starts -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_a_task_starts_get_the_main_modules_definitions(
    method: str, tmp_path: Path
) -> None:
    script = tmp_path / "swapped.py"
    script.write_text(f"""
import ciel, multiprocessing
from concurrent.futures import ProcessPoolExecutor

class Pair:
    def __init__(self, one, other):
        self.both = one, other

def swapped(pair):
    return Pair(*reversed(pair.both))

def all_swapped():
    context = multiprocessing.get_context({method!r})
    with context.Pool(2) as pool, ProcessPoolExecutor(2, mp_context=context) as executor:
        pairs = pool.map(swapped, [Pair(1, 2), Pair(3, 4)])
        pairs += executor.map(swapped, [Pair(5, 6)])
    return [pair.both for pair in pairs if type(pair) is Pair]

if __name__ == "__main__":
    with ciel.LocalCluster(workers=1, slots=1) as cluster, ciel.Client(cluster) as client:
        print(client.submit(all_swapped).result())
""")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.stdout == "[(2, 1), (4, 3), (6, 5)]\n", done.stderr


# --- documented promises --------------------------------------------------------------------------


@pytest.mark.parametrize("address", [4, ["127.0.0.1:8000"], {"workers": 2}])
def test_an_invalid_address_is_refused_with_a_reason(address: Any) -> None:
    with pytest.raises(
        TypeError, match=r"takes the address .*ciel\.LocalCluster\(workers=1, slots"
    ):
        ciel.Client(address)


def test_put_on_a_closed_client_raises(cluster: ciel.LocalCluster) -> None:
    client = ciel.Client(cluster, environ={})
    client.close()
    for value in (b"small", bytes(1 << 20)):
        with pytest.raises(ciel.ClientError, match="the client is closed"):
            client.put(value)


def kinds_of(*values: Any, **named: Any) -> list[tuple[str, int]]:
    return [
        (type(value).__name__, memoryview(value).nbytes) for value in (*values, *named.values())
    ]


def returned(value: Any) -> Any:
    return value


def test_large_bytes_keep_their_type(client: ciel.Client) -> None:
    content = os.urandom(1 << 20)
    values = [content, bytearray(content), memoryview(content), memoryview(b"small")]
    expected = [("bytes", 1 << 20), ("bytearray", 1 << 20), ("memoryview", 1 << 20)]
    found = client.submit(kinds_of, *values[:3], more=values[3]).result(WITHIN_S)
    assert found == [*expected, ("memoryview", 5)]
    assert client.submit(returned, {"all": values}).result(WITHIN_S) == {"all": values}
    assert list(client.map(returned, values)) == values
    assert client.put(values).result() == values
    twice = client.submit(lambda one, other: one is other, values[1], values[1])
    assert twice.result(WITHIN_S)


def test_a_large_bytearray_may_be_written_to(client: ciel.Client) -> None:
    def cleared(array: bytearray) -> bytearray:
        array[:] = bytes(len(array))
        return array

    ours = bytearray(b"x" * (1 << 20))
    theirs = client.submit(cleared, ours).result(WITHIN_S)
    theirs[0] = 1
    assert (ours[0], theirs[0], theirs[1]) == (ord("x"), 1, 0)
