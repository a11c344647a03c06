"""The functions that the tasks of `python.py` call.

The processes of these tasks import this module, and no other module of the benchmarks.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ciel

KIB = b"x" * 1024


def same(number: int) -> int:
    """Do nothing."""
    return number


def next_of(number: int) -> int:
    """Add one."""
    return number + 1


def add_up(*numbers: int) -> int:
    """Sum the results of many calls."""
    return sum(numbers)


def kibibyte(number: int) -> bytes:
    """Return 1 KiB that differs for each number."""
    return number.to_bytes(4, "big") + KIB[4:]


def size_of(content: bytes, number: int) -> int:
    """Read an argument; `number` makes each call different."""
    return len(content)


@ciel.task
def fib(n: int) -> int:
    """Wait for two tasks, and return the sum of their results."""
    if n < 2:
        return n
    one, other = fib.spawn(n - 1), fib.spawn(n - 2)
    return one.result() + other.result()


@ciel.task
def delegated_fib(n: int) -> int:
    """Delegate the result to a third task."""
    if n < 2:
        return n
    return ciel.call(add_up, delegated_fib.spawn(n - 1), delegated_fib.spawn(n - 2))


def calls_of_fib(n: int) -> int:
    """Return the number of tasks of one call of `fib`, itself included."""
    one, other = 1, 1
    for _ in range(n - 1):
        one, other = other, 1 + one + other
    return other


def plain_fib(n: int) -> int:
    """Return the same as `fib`."""
    return n if n < 2 else plain_fib(n - 1) + plain_fib(n - 2)


def array_in_store(count: int, value: float) -> Any:
    """Create an array in the store, where other tasks can read it without a copy."""
    made = ciel.empty(count, "float64")
    made.fill(value)
    return made


def array(count: int, value: float) -> Any:
    """Create an array in the usual way."""
    import numpy

    return numpy.full(count, value)


def total(numbers: Any, library: str) -> float:
    """Sum in C, as fast as memory can be read, as the lower bound does."""
    return _added_up(ctypes.CDLL(library).total, numbers)


def total_one_by_one(numbers: Any, library: str) -> float:
    """Sum in C by a plain loop, as the lower bound `one-by-one` does."""
    return _added_up(ctypes.CDLL(library).total_one_by_one, numbers)


def _added_up(add: Any, numbers: Any) -> float:
    add.restype = ctypes.c_double
    return float(add(ctypes.c_void_p(numbers.ctypes.data), ctypes.c_int64(len(numbers))))
