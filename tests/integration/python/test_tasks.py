"""Tests Python tasks that create tasks: trees, which program runs a task, and errors.

The functions here are sent with their code: no program of a task can import this file.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import ciel
from ciel.client.errors import TaskFailedError
from ciel.core.tasks import Needs
from ciel.python import calls, failures, packing
from ciel.python.contents import ERROR, decode

cloudpickle.register_pickle_by_value(sys.modules[__name__])
WITHIN_S = 30


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    with (
        ciel.LocalCluster(workers=1, slots=2, directory=tmp_path_factory.mktemp("two")) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    """Connect a client to a cluster with one slot."""
    with (
        ciel.LocalCluster(workers=1, slots=1, directory=tmp_path_factory.mktemp("one")) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    """Connect a client to a cluster of two workers, neither of which knows whether the other has
    room.
    """
    with (
        ciel.LocalCluster(workers=2, slots=1, directory=tmp_path_factory.mktemp("wide")) as cluster,
        ciel.Client(cluster) as client,
    ):
        yield client


def add(*numbers: int) -> int:
    return sum(numbers)


@ciel.task
def square(number: int) -> int:
    return number * number


@ciel.task
def slow_square(number: int, seconds: float = 0.2) -> int:
    time.sleep(seconds)
    return number * number


# --- trees ----------------------------------------------------------------------------------------


@ciel.task
def tree_by_result(depth: int) -> int:
    if not depth:
        return 1
    one, other = tree_by_result.spawn(depth - 1), tree_by_result.spawn(depth - 1)
    return one.result() + other.result() + 1


@ciel.task
def tree_by_delegation(depth: int) -> int:
    if not depth:
        return 1
    return ciel.call(
        add, tree_by_delegation.spawn(depth - 1), tree_by_delegation.spawn(depth - 1), 1
    )


@ciel.task
async def tree_by_await(depth: int) -> int:
    if not depth:
        return 1
    one: Any = tree_by_await.spawn(depth - 1)
    other: Any = tree_by_await.spawn(depth - 1)
    return int(await one + await other + 1)


@ciel.task
def tree_by_yield(depth: int) -> Generator[Any, int, int]:
    if not depth:
        return 1
    one, other = tree_by_yield.spawn(depth - 1), tree_by_yield.spawn(depth - 1)
    return (yield one) + (yield other) + 1


class _Peak:
    """Counts the programs below a launcher while a block runs, and keeps the maximum."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.count = 0

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.005):
            self.count = max(self.count, _programs_below(self._worker))


def _programs_below(pid: int) -> int:
    count, pending = 0, [pid]
    while pending:
        try:
            listed = Path(f"/proc/{pending[-1]}/task/{pending.pop()}/children").read_text().split()
            commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in listed]
        except OSError:
            continue  # it has just ended
        count += sum(b"programs/python/start.py" in command for command in commands)
        pending += map(int, listed)
    return count


@pytest.mark.parametrize("tree", [tree_by_result, tree_by_delegation, tree_by_await], ids=str)
def test_a_tree_of_30000_tasks_ends_on_one_slot(
    narrow: ciel.Client, tree: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    depth = 14
    assert narrow.cluster is not None
    with _Peak(narrow.cluster.workers[0].pid) as peak:
        assert narrow.submit(tree, depth).result(WITHIN_S) == 2 ** (depth + 1) - 1
    with capsys.disabled():
        print(f"\n{2 ** (depth + 1) - 1} tasks, depth {depth}: {peak.count} processes at the most")
    assert 1 <= peak.count <= depth + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "tree", [tree_by_result, tree_by_delegation, tree_by_await, tree_by_yield], ids=str
)
def test_a_tree_is_shared_between_workers(wide: ciel.Client, tree: Any) -> None:
    found = wide.submit(tree, 11).result(WITHIN_S)
    assert (list(found)[-1] if isinstance(found, list) else found) == 2**12 - 1


@ciel.task
def down_by_result(depth: int) -> int:
    return 0 if not depth else down_by_result.spawn(depth - 1).result() + 1


@ciel.task
def down_by_delegation(depth: int) -> int:
    return 0 if not depth else ciel.call(down_by_delegation, depth - 1)


@ciel.task(retries=1)
def down_by_tasks(depth: int) -> int:
    return 0 if not depth else down_by_tasks.spawn(depth - 1).result() + 1


@ciel.task(retries=1)
def over_by_tasks(depth: int) -> str:
    return "end" if not depth else ciel.call(over_by_tasks, depth - 1)


def test_the_depth_of_nested_waits_has_no_limit(narrow: ciel.Client) -> None:
    # more than fit into one program
    assert narrow.submit(down_by_result, 250).result(WITHIN_S) == 250
    assert narrow.submit(down_by_delegation, 5000).result(WITHIN_S) == 0
    assert narrow.submit(down_by_tasks, 5).result(WITHIN_S) == 5  # each is a suspended program


@ciel.task
def memory_after(count: int) -> int:
    if not count:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return ciel.call(memory_after, count - 1)


def test_a_long_chain_of_delegating_tasks_takes_constant_memory(narrow: ciel.Client) -> None:
    few = narrow.submit(memory_after, 10).result(WITHIN_S)
    assert narrow.submit(memory_after, 60_000).result(WITHIN_S) < few + (16 << 20)


def test_delegating_tasks_leave_no_suspended_programs(narrow: ciel.Client) -> None:
    assert narrow.cluster is not None
    with _Peak(narrow.cluster.workers[0].pid) as peak:
        before = peak.count = _programs_below(narrow.cluster.workers[0].pid)
        assert narrow.submit(over_by_tasks, 20).result(WITHIN_S) == "end"
    assert peak.count <= before + 1


# --- which program runs a task --------------------------------------------------------------------


@ciel.task
def pids(count: int) -> tuple[int, list[int]]:
    return os.getpid(), ciel.gather([getpid.spawn(0.0) for _ in range(count)])


@ciel.task
def slow_pids(count: int) -> tuple[int, list[int]]:
    return os.getpid(), ciel.gather([getpid.spawn(0.2) for _ in range(count)])


@ciel.task
def getpid(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.slow
def test_short_children_run_in_the_program_of_their_parent(client: ciel.Client) -> None:
    parent, children = client.submit(pids, 20).result(WITHIN_S)
    assert children.count(parent) > 1  # all of them, unless they take 10 ms
    parent, children = client.submit(slow_pids, 6).result(WITHIN_S)
    assert parent in children
    assert len(set(children)) > 1


@ciel.task
def spawns_in_vain(path: str) -> str:
    writes.spawn(path)
    return "done"


@ciel.task
def writes(path: str) -> None:
    Path(path).write_text("ran")


def test_children_that_are_not_needed_do_not_run(client: ciel.Client, tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert client.submit(spawns_in_vain, str(path)).result(WITHIN_S) == "done"
    assert client.submit(square, 2).result(WITHIN_S) == 4
    assert not path.exists()


@ciel.task
def with_options() -> list[int]:
    return ciel.gather([square.options(retries=2, name="q").spawn(n) for n in range(4)])


def test_calls_with_options_are_separate_tasks(client: ciel.Client) -> None:
    parent, child = client.submit(own_process).result(WITHIN_S)
    assert parent != child
    assert client.submit(with_options).result(WITHIN_S) == [0, 1, 4, 9]


@ciel.task
def own_process() -> tuple[int, int]:
    return os.getpid(), getpid.options(timeout_s=20).spawn(0.0).result()


@ciel.task
def takes_changes() -> tuple[Any, ...]:
    late = [ciel.spawn(lambda: n) for n in range(3)]  # noqa: B023  # late binding is intended
    items = [1]
    count = ciel.spawn(len, items)
    items.append(2)
    array = np.zeros(3)
    total = ciel.spawn(np.sum, array)
    array[:] = 1
    return (*ciel.gather(late), count.result(), float(total.result()))


def test_spawned_calls_use_their_arguments_at_the_moment_of_the_spawn(client: ciel.Client) -> None:
    assert client.submit(takes_changes).result(WITHIN_S) == (0, 1, 2, 1, 0.0)


@ciel.task
def changes_result() -> tuple[Any, ...]:
    made = np_zeros.spawn()
    one, other = fill.spawn(made), first_of.spawn(made)
    return one.result(), other.result(), made.result().flags.writeable


@ciel.task
def np_zeros() -> Any:
    return np.zeros(3)


@ciel.task
def fill(array: Any) -> float:
    array[:] = 7
    return float(array[0])


@ciel.task
def first_of(array: Any) -> float:
    return float(array[0])


def test_a_child_has_its_own_copy_of_an_argument(client: ciel.Client) -> None:
    assert client.submit(changes_result).result(WITHIN_S) == (7.0, 0.0, True)


@ciel.task
def wait_kinds() -> tuple[Any, ...]:
    futures = [square.spawn(n) for n in range(4)]
    done, left = ciel.wait(futures, return_when="FIRST_COMPLETED")
    values = sorted(future.result() for future in ciel.as_completed(futures))
    return len(done), len(left), values, ciel.put([1]).result(), futures[0].done()


def test_wait_and_as_completed_work_within_tasks(client: ciel.Client) -> None:
    assert client.submit(wait_kinds).result(WITHIN_S) == (1, 3, [0, 1, 4, 9], [1], True)


@ciel.task
def first_of_two(seconds: float) -> int:
    both = [slow_square.options(retries=1).spawn(n, n * seconds) for n in (0, 9)]
    done, _ = ciel.wait(both, return_when="FIRST_COMPLETED")
    first: int = next(iter(done)).result()
    return first


def test_waiting_for_the_first_child_does_not_wait_for_the_second(client: ciel.Client) -> None:
    assert client.submit(first_of_two, 3.0).result(10) == 0  # the second one takes 27 s


@ciel.task
def in_threads() -> list[int]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda n: tree_by_result.spawn(n).result(), range(6)))


def test_threads_of_a_task_may_spawn_and_wait_for_children(client: ciel.Client) -> None:
    assert client.submit(in_threads).result(WITHIN_S) == [1, 3, 7, 15, 31, 63]


# --- values with futures, and errors --------------------------------------------------------------


@ciel.task
def with_futures_inside() -> dict[str, Any]:
    return {"one": square.spawn(3), "more": [slow_square.spawn(4, 0.0)], "done": ciel.put(b"x")}


@ciel.task
def read_inside(value: dict[str, Any]) -> Any:
    return value["one"].result() + value["more"][0].result(), value["done"].result()


def test_futures_within_a_result_can_be_read_by_clients_and_tasks(client: ciel.Client) -> None:
    found = client.submit(with_futures_inside)
    value = found.result(WITHIN_S)
    assert (value["one"].result(WITHIN_S), value["more"][0].result(WITHIN_S)) == (9, 16)
    assert client.submit(read_inside, found).result(WITHIN_S) == (25, b"x")


@ciel.task(returns=2)
def two_values(number: int) -> Any:
    return number, square.spawn(number)


def test_one_of_several_return_values_may_be_a_future(client: ciel.Client) -> None:
    pair: Any = client.submit(two_values, 3)
    one, other = pair
    assert (one.result(WITHIN_S), other.result(WITHIN_S)) == (3, 9)


@ciel.task(retries=1)
def large_in_the_end(depth: int) -> bytes:
    return bytes(100_000) if not depth else ciel.call(large_in_the_end, depth - 1)


def test_a_large_result_is_found_through_several_delegations(client: ciel.Client) -> None:
    made = client.submit(large_in_the_end, 2)
    assert client.submit(len, made).result(WITHIN_S) == 100_000
    assert len(made.result(WITHIN_S)) == 100_000


@ciel.task
def raises(kind: type[Exception]) -> None:
    raise kind("as it is")


@ciel.task
def catches(own: bool) -> str:
    child = raises if own else raises.options(timeout_s=20)
    try:
        child.spawn(LookupError).result()
    except LookupError as error:
        return f"{error} {type(error.__cause__).__name__}"
    return "nothing"


@pytest.mark.parametrize("own", [True, False], ids=["here", "elsewhere"])
def test_an_exception_of_a_child_is_caught_by_its_class(client: ciel.Client, own: bool) -> None:
    assert client.submit(catches, own).result(WITHIN_S) == "as it is RemoteTraceback"


@ciel.task
def passes_on(own: bool) -> Any:
    child = raises if own else raises.options(timeout_s=20)
    return ciel.call(add, child.spawn(LookupError), 1)


@pytest.mark.parametrize("own", [True, False], ids=["here", "elsewhere"])
def test_a_task_whose_argument_failed_raises_the_same_exception(
    client: ciel.Client, own: bool
) -> None:
    with pytest.raises(LookupError, match="as it is"):
        client.submit(passes_on, own).result(WITHIN_S)


@ciel.task
def dies() -> None:
    os._exit(3)


@ciel.task
def survives() -> tuple[int, str]:
    other, dead = square.spawn(5), dies.spawn()
    try:
        dead.result()
    except ciel.TaskKilledError as error:
        return other.result(), str(error)
    return 0, ""


def test_a_child_that_kills_its_program_fails_alone(client: ciel.Client) -> None:
    value, text = client.submit(survives).result(WITHIN_S)
    assert value == 25
    assert text.startswith("in task dies (")
    assert "its process ended with exit status 3" in text


@ciel.task
def endless() -> int:
    value: int = endless.function()
    return value


def test_endless_recursion_is_an_exception(client: ciel.Client) -> None:
    with pytest.raises(RecursionError):
        client.submit(endless).result(WITHIN_S)


@ciel.task
def calls_off() -> tuple[bool, bool, bool]:
    future = square.spawn(2)
    return future.cancel(), future.cancelled(), future.cancel()


def test_a_child_that_was_not_started_can_be_cancelled(client: ciel.Client) -> None:
    assert client.submit(calls_off).result(WITHIN_S) == (True, True, False)


# --- bundles --------------------------------------------------------------------------------------


def outcomes(
    client: ciel.Client, function: Callable[..., Any], lots: int, each: int = 1, failed: int = 0
) -> list[Any]:
    """Run calls 0, 1, … in one bundle of several lots; return their outcomes. The last `failed`
    calls take a result that cannot be produced.
    """
    job = client.job()
    (lost,) = job.add("stdinout", {"args": {"command_line": ["false"]}})
    made = calls.function_of(cloudpickle.dumps(function))
    numbers = iter(range(lots * each))
    written = tuple(
        [
            tuple([_call(next(numbers), lots * each - failed) for _ in range(each)])
            for _ in range(lots)
        ]
    )
    bundle = calls.Bundle(calls.VERSION, (), (made,), written)
    arguments = calls.arguments_of(calls.pack_bundle(bundle), [lost] if failed else [])
    refs = job.add(
        "python", arguments, n_outputs=lots, needs=Needs(retries=1), sees_errors=failed > 0
    )
    job.want(refs)
    found = [outcome for ref in refs for outcome in decode(job.read(ref, WITHIN_S)).outcomes]
    job.cancel()
    return [
        failures.unpack_error(outcome.packed.head)
        if outcome.kind == ERROR
        else packing.unpack(outcome.packed.head)
        for outcome in found
    ]


def _call(number: int, good: int) -> calls.Call:
    uses = (calls.Use(0, 0, 0, True, calls.AS_VALUE),) if number >= good else ()
    return calls.Call(0, packing.pack(((number,), {})), uses, name="f")


def twice(number: int) -> int:
    return 2 * number


def where(number: int) -> int:
    time.sleep(0.1)
    return os.getpid()


def dies_at_five(number: int) -> int:
    if number == 5:
        os._exit(3)
    return number


def raises_at_odd(number: int) -> int:
    if number % 2:
        raise LookupError(number)
    return number


def test_the_lots_of_a_bundle_become_its_outputs(client: ciel.Client) -> None:
    assert outcomes(client, twice, 3, 4) == [2 * n for n in range(12)]


def test_lots_that_take_long_are_moved_to_workers_with_room(client: ciel.Client) -> None:
    pids = outcomes(client, where, 6)
    assert len(set(pids)) > 1
    assert pids[0] == pids[1]  # the first calls stay


def test_one_call_that_raises_does_not_fail_the_rest_of_its_bundle(client: ciel.Client) -> None:
    found = outcomes(client, raises_at_odd, 2, 2)
    assert found[::2] == [0, 2]
    assert [type(error) for error in found[1::2]] == [LookupError, LookupError]


def test_one_call_that_kills_its_program_fails_alone(client: ciel.Client) -> None:
    found = outcomes(client, dies_at_five, 2, 4)
    assert isinstance(found.pop(5), ciel.TaskKilledError)
    assert found == [0, 1, 2, 3, 4, 6, 7]


def test_a_failed_input_fails_only_the_calls_that_take_it(client: ciel.Client) -> None:
    *good, bad = outcomes(client, twice, 1, 3, failed=1)
    assert good == [0, 2]
    assert isinstance(bad, ciel.TaskError)


def test_calls_of_another_version_are_refused_in_one_line(client: ciel.Client) -> None:
    bundle = calls.Bundle((3, 9, "0.0.9"), (), (), ())
    job = client.job()
    (ref,) = job.add("python", calls.arguments_of(calls.pack_bundle(bundle), []))
    with pytest.raises(TaskFailedError) as caught:
        job.read(ref, WITHIN_S)
    job.cancel()
    text = str(caught.value)
    assert text.startswith("the call was made by Python 3.9 with ciel 0.0.9, and the worker's")
    assert "\n" not in text
