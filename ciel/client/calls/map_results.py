"""Iterates over the results of a map, whose calls run as several tasks, its *parts*."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ciel.python.calls import Mapped
from ciel.python.failures import error_of_map, pack_error, unpack_error
from ciel.python.sessions import current
from ciel.python.tasks import name_of

Begin = Callable[[list[tuple[Any, ...]], int | None], Sequence[Any]]
"""Submits calls with rows of arguments, a number of rows in each task; returns the futures of the
parts."""


def results_of_map(
    begin: Begin,
    iterables: Iterable[Iterable[Any]],
    timeout: float | None,
    chunksize: int | None,
    buffersize: int | None,
) -> Iterator[Any]:
    """Submit the calls of a map, and return the iterator of their results; see `Executor.map`."""
    if chunksize is not None and chunksize < 1:
        raise ValueError(f"chunksize must be at least 1, not {chunksize}")
    if buffersize is not None and buffersize < 1:
        raise ValueError(f"buffersize must be None or at least 1, not {buffersize}")
    until_s = None if timeout is None else time.monotonic() + timeout
    rows = zip(*iterables, strict=False)
    if buffersize is None:
        return _results(deque(begin(list(rows), chunksize)), iter(()), until_s)
    size = chunksize or 1
    further = (part for chunk in chunks_of(rows, size) for part in begin(chunk, size))
    return _results(deque(itertools.islice(further, -(-buffersize // size))), further, until_s)


def _results(waiting: deque[Any], further: Iterator[Any], until_s: float | None) -> Iterator[Any]:
    """Yield the results of parts in order. When it is closed, cancel the remaining parts."""
    count = 0
    try:
        while waiting:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            mapped: Mapped = waiting[0].result(left_s)
            waiting.extendleft(reversed(rest_of(waiting.popleft())))
            waiting.extend(itertools.islice(further, 1))
            before, count = count, count + len(mapped.values)
            yield from values_of(mapped, before)
    finally:
        for future in waiting:
            future.cancel()


def values_of(mapped: Mapped, before: int | None = None) -> Iterator[Any]:
    """Yield the results of a part, and then raise the error of the call that failed, if one did.

    The iterator keeps no reference to a result that it has yielded. `before`: how many results of
    the map precede this part, for the note in the error; None: the results have no order.
    """
    count = len(mapped.values)
    mapped.values.reverse()
    while mapped.values:
        yield mapped.values.pop()
    if mapped.error is not None:
        if before is None:
            raise unpack_error(mapped.error)
        raise error_of_map(mapped.error, before + count)


def rest_of(part: Any) -> Sequence[Any]:
    """Return the futures of the parts whose results follow the results of a part."""
    rest: Sequence[Any] = getattr(part, "rest", ())
    return rest


def chunks_of(rows: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows in lists of at most `size`."""
    rows = iter(rows)
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def call_each(function: Callable[..., Any], rows: list[tuple[Any, ...]]) -> Mapped:
    """Call a function with each row until a call raises; a task runs this for a part."""
    values: list[Any] = []
    whole = getattr(current(), "resolve", None)  # the task may have opened a client
    name = name_of(function)
    try:
        for row in rows:
            value = function(*row)
            values.append(value if whole is None else whole(value, name))
    except Exception as error:
        return Mapped(values, pack_error(error, 1))
    return Mapped(values, None)
