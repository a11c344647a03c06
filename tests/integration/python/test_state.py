"""Checks that a call sees the captured state of its function as of the moment of the call, and no
changes that other calls made to their copies.

Random programs give the same values as a `ThreadPoolExecutor` whose calls are copied by pickle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ciel

pytestmark = pytest.mark.slow

IS_LONG = os.environ.get("CIEL_LONG") == "1"
EXAMPLES = 2000 if IS_LONG else 15

PROGRAM = """
import functools
import numpy as np

table, items, number, array = {"n": 1, "inner": [0]}, [], 1, np.zeros(3)
frozen = ("a", 1, frozenset({2}))

class Box:
    def __init__(self):
        self.n, self.items = 0, []
    def add(self, x):
        self.n += x
        self.items.append(x)
        return self.n, list(self.items)

class Slotted:
    __slots__ = ("n",)
    def __init__(self):
        self.n = 0

box, slotted = Box(), Slotted()

def reads(x):
    return frozen, number + x

def in_table(x):
    table["n"] += x
    table["inner"].append(x)
    table[x] = x
    return sorted(map(str, table.items()))

def grows(x):
    items.append(x)
    return items

def rebinds(x):
    global number
    number += x
    return number

def fills(x):
    array[0] += x
    return array.tolist()

def gives_array(x):
    array[0] += x
    return array

def in_box(x):
    box.n += x
    box.items.append(x)
    return box.n, box.items

def in_slotted(x):
    slotted.n += x
    return slotted.n

def has_default(x, seen=[]):
    seen.append(x)
    return seen

def has_keyword_default(x, *, seen={}):
    seen[x] = seen.get(x, 0) + 1
    return sorted(seen.items())

def counted(x):
    counted.count = getattr(counted, "count", 0) + x
    return counted.count

def times(by, x, *, log):
    by[0] += x
    log.append(x)
    return by[0], len(log)

def made():
    n, kept = 0, []
    def add(x):
        nonlocal n
        n += x
        kept.append(x)
        return n, kept
    def change(x):
        nonlocal n
        n = x
    return add, change

def helps(x):
    return rebinds(x), list(grows(x)), in_box(x)[0]

def yields(x):
    items.append(x)
    yield from list(items)

def spawns(x):
    before = spawn(grows, x), spawn(rebinds, x), spawn(lambda y: (number, y), x)
    items.append(100)
    rebinds(10)
    after = spawn(grows, x), spawn(rebinds, x), spawn(box.add, x), spawn(part, x)
    return [f.result() for f in before + after], list(items), number, box.n

partial_log = []
part = functools.partial(times, [1], log=partial_log)
closure, change = made()
"""

CALLED = (
    "reads", "in_table", "grows", "rebinds", "fills", "gives_array", "in_box", "in_slotted",
    "has_default", "has_keyword_default", "counted", "part", "closure", "box.add",
    "helps", "yields", "spawns",
)  # fmt: skip
CHANGES = (
    "table['n'] = 5", "table['inner'] = [7]", "table['inner'].append(8)",
    "del table['n']; table['n'] = 2",
    "items.append(9)", "items = [3]", "number = 7", "number = True", "array += 1",
    "array = np.ones(3)", "box.n = 4", "box.items.append(2)", "box = Box()", "slotted.n += 1",
    "has_default.__defaults__[0].append(6)", "counted.count = 8",
    "has_keyword_default.__kwdefaults__['seen'][1] = 1", "part.args[0][0] = 4",
    "partial_log.append(1)", "change(9)", "def grows(x): return ['another', x, number]",
)  # fmt: skip
WAYS = ("submit", "map", "executor")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(WAYS), st.sampled_from(CALLED), st.integers(0, 3)),
        st.tuples(st.just("change"), st.sampled_from(CHANGES), st.just(0)),
    ),
    min_size=2,
    max_size=8,
)


class Done:
    """The future of a value that was computed at once, as spawns of copies return it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value


def copied(function: Callable[..., Any], *args: Any) -> Any:
    value = cloudpickle.loads(cloudpickle.dumps((function, args)))
    result = value[0](*value[1])
    result = list(result) if hasattr(result, "send") else result
    return cloudpickle.loads(cloudpickle.dumps(result))


SPAWN_COPIED = """
def spawn(function, *args):
    from tests.integration.python.test_state import Done, copied
    return Done(copied(function, *args))
"""
SPAWN_OURS = "from ciel import spawn"


class Copies:
    """Runs calls in threads, with copies that are made at the moment of the call."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, function: Any, x: int) -> Any:
        packed = cloudpickle.dumps(function)
        return self._pool.submit(lambda: copied(cloudpickle.loads(packed), x))

    def map(self, function: Any, xs: list[int]) -> list[Any]:
        return [self.submit(function, x) for x in xs]


def outcome(wait: Callable[[], Any]) -> Any:
    try:
        return repr(wait())
    except Exception as error:
        return repr(error)


def run(steps: list[tuple[str, str, int]], spawn: str, submit: Any, map_: Any, other: Any) -> Any:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM + spawn, names)
    waits: list[Callable[[], Any]] = []
    for way, what, x in steps:
        if way == "change":
            exec(what, names)
            continue
        function = eval(what, names)
        if way == "map":
            results = map_(function, [x, x + 1, x])
            waits.append(lambda results=results: list(results))  # type: ignore[misc]  # it is bound now
        else:
            waits.append((submit if way == "submit" else other)(function, x).result)
    return [outcome(wait) for wait in waits]


@pytest.fixture(scope="module")
def client() -> Iterator[ciel.Client]:
    with ciel.Client(cluster_options={"workers": 1, "slots": 2}, environ={}) as found:
        yield found


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not IS_LONG,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@example(steps=[("submit", "spawns", 1), ("submit", "spawns", 1), ("map", "closure", 1)])
@example(steps=[(way, name, 1) for name in CALLED for way in ("map", "submit", "submit")])
@example(
    steps=[
        step
        for name in CALLED
        for step in (("submit", name, 1), *(("change", change, 0) for change in CHANGES[:-1]))
    ]
    + [("executor", name, 1) for name in CALLED]
)
@given(steps=STEPS)
def test_random_programs_give_the_same_values_as_calls_of_copies(
    client: ciel.Client, steps: list[tuple[str, str, int]]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        copies = Copies(pool)
        expected = run(
            steps, SPAWN_COPIED, copies.submit,
            lambda function, xs: (future.result() for future in copies.map(function, xs)),
            copies.submit,
        )  # fmt: skip
    executor = ciel.Executor(client=client)
    found = run(steps, SPAWN_OURS, client.submit, client.map, executor.submit)
    assert found == expected
