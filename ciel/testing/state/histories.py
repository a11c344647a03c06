"""Histories of single keys, and whether they are linearizable.

A history is linearizable if each operation can take effect at one moment between its call and its
return, so that every result is what a base with one client would give (Herlihy and Wing, 1990).
The algorithm is by Wing and Gong, the cache of states by Lowe (2017).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from random import Random
from typing import NamedTuple

from ciel.state.batches import (
    Delete,
    Increment,
    Insert,
    Overlay,
    Put,
    Same,
    Step,
    Update,
    carry_out,
)
from ciel.state.errors import RefusedError, UnreachableError
from ciel.state.interface import Base

Outcome = tuple[object, ...]


class Operation(NamedTuple):
    """An operation of a client on a key, from `called_s` to `returned_s`.

    `steps`: the batch, empty for a read. `outcome`: the result or the refusal; None if the client
    got no answer. Then the operation may take effect at any time after the call, or never.
    """

    key: bytes
    steps: tuple[Step, ...]
    called_s: float
    returned_s: float
    outcome: Outcome | None


def apply(value: bytes | None, steps: tuple[Step, ...], key: bytes) -> tuple[bytes | None, Outcome]:
    """Return the value after an operation on a key, and what its client learns."""
    if not steps:
        return value, (value,)
    view = Overlay(lambda _: value, lambda first, last: ())
    try:
        results = carry_out(steps, view)
    except RefusedError as error:
        return value, (type(error).__name__, error.step)
    return view.get(key), tuple(results)


def is_linearizable(operations: Iterable[Operation], value: bytes | None = None) -> bool:
    """Return whether a history is linearizable. Each key has the value at its start."""
    by_key: defaultdict[bytes, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    return all(_is_linearizable(sorted(own, key=_called), value) for own in by_key.values())


def _called(operation: Operation) -> float:
    return operation.called_s


def _is_linearizable(operations: list[Operation], value: bytes | None) -> bool:
    """Search for an order, depth first. A state is the set of operations done, and the value."""
    known = sum(1 << n for n, operation in enumerate(operations) if operation.outcome is not None)
    seen: set[tuple[int, bytes | None]] = set()
    waiting = [(0, value)]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        done, current = state
        if done & known == known:
            return True
        left = [n for n in range(len(operations)) if not done >> n & 1]
        first_return_s = min(
            operations[n].returned_s for n in left if operations[n].outcome is not None
        )
        for n in left:
            operation = operations[n]
            if operation.called_s > first_return_s:
                break  # another operation had returned before this one was called
            after, outcome = apply(current, operation.steps, operation.key)
            if operation.outcome is None or operation.outcome == outcome:
                waiting.append((done | 1 << n, after))
    return False


def record(
    bases: list[Base], keys: list[bytes], operations_each: int, seed: int,
    pause: Callable[[Random], None] = lambda random: None,
) -> list[Operation]:  # fmt: skip
    """Let one client for each base do random operations at the same time; return the history."""
    history: list[Operation] = []
    failures: list[BaseException] = []

    def work(number: int, base: Base) -> None:
        random = Random(seed * 1000 + number)
        try:
            for count in range(operations_each):
                key, content = random.choice(keys), b"%d" % (number * 1_000 + count)
                steps = _random_steps(random, key, content)
                called_s = time.monotonic()
                outcome = _outcome(base, key, steps)
                returned_s = inf if outcome is None else time.monotonic()
                history.append(Operation(key, steps, called_s, returned_s, outcome))
                pause(random)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(bases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return history


def _random_steps(random: Random, key: bytes, content: bytes) -> tuple[Step, ...]:
    match random.randrange(8):
        case 0 | 1:
            return ()
        case 2:
            return (Put(key, content),)
        case 3:
            return (Increment(key, random.randrange(1, 9)),)
        case 4:
            return (Insert(key, content),)
        case 5:
            return (Delete(key),)
        case 6:
            return (Same(key, None), Put(key, content))
        case _:
            return (Update(key, content), Increment(key))


def _outcome(base: Base, key: bytes, steps: tuple[Step, ...]) -> Outcome | None:
    try:
        return tuple(base.apply(steps)) if steps else (base.get(key),)
    except RefusedError as error:
        return type(error).__name__, error.step
    except UnreachableError:
        return None
