"""What the tasks of `python.py` call: their programs import it, and nothing else of these."""

from __future__ import annotations

import ctypes
from typing import Any

import ciel

KIB = b"x" * 1024


def same(number: int) -> int:
    """Do nothing."""
    return number


def next_of(number: int) -> int:
    """Go one hop."""
    return number + 1


def add_up(*numbers: int) -> int:
    """Take what many have made."""
    return sum(numbers)


def kibibyte(number: int) -> bytes:
    """Return 1 KiB, another each time."""
    return number.to_bytes(4, "big") + KIB[4:]


def size_of(content: bytes, number: int) -> int:
    """Look at an argument; `number` makes one call unlike another."""
    return len(content)


@ciel.task
def fib(n: int) -> int:
    """Wait for two tasks, and return what they made."""
    if n < 2:
        return n
    one, other = fib.spawn(n - 1), fib.spawn(n - 2)
    return one.result() + other.result()


@ciel.task
def delegated_fib(n: int) -> int:
    """Hand the result over to a third task."""
    if n < 2:
        return n
    return ciel.call(add_up, delegated_fib.spawn(n - 1), delegated_fib.spawn(n - 2))


def calls_of_fib(n: int) -> int:
    """Return how many tasks one of `fib` makes, itself included."""
    one, other = 1, 1
    for _ in range(n - 1):
        one, other = other, 1 + one + other
    return other


def plain_fib(n: int) -> int:
    """Return what `fib` does."""
    return n if n < 2 else plain_fib(n - 1) + plain_fib(n - 2)


def array_in_store(count: int, value: float) -> Any:
    """Make an array where others can read it without a copy."""
    made = ciel.empty(count, "float64")
    made.fill(value)
    return made


def array(count: int, value: float) -> Any:
    """Make an array as everybody does."""
    import numpy

    return numpy.full(count, value)


def total(numbers: Any, library: str) -> float:
    """Add up in C, as fast as memory is read, as the floor does."""
    return _added_up(ctypes.CDLL(library).total, numbers)


def total_one_by_one(numbers: Any, library: str) -> float:
    """Add up in C by a plain loop, as that floor does."""
    return _added_up(ctypes.CDLL(library).total_one_by_one, numbers)


def _added_up(add: Any, numbers: Any) -> float:
    add.restype = ctypes.c_double
    return float(add(ctypes.c_void_p(numbers.ctypes.data), ctypes.c_int64(len(numbers))))
