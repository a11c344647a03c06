"""Fibonacci numbers, every call a task. One that needs two others hands its result over to a third,
and is over: it waits for nothing, and holds no slot.

    python examples/python/fib.py [N]
"""

import sys

import ciel


def add(one: int, other: int) -> int:
    """Be given what two tasks have made."""
    return one + other


@ciel.task
def fib(n: int) -> int:
    """Return the n-th of them."""
    if n < 2:
        return n
    return ciel.call(add, fib.spawn(n - 1), fib.spawn(n - 2))


def main() -> None:
    """Ask for one of them."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with ciel.Client() as client:
        print(client.submit(fib, n).result())


if __name__ == "__main__":
    main()
