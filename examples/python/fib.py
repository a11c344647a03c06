"""Fibonacci numbers, where every call is a task.

A task that needs two results delegates to a third task, and ends: it does not wait, and holds no
slot.

    python examples/python/fib.py [N]
"""

import sys

import ciel


def add(one: int, other: int) -> int:
    """Add the results of two tasks."""
    return one + other


@ciel.task
def fib(n: int) -> int:
    """Return the n-th Fibonacci number."""
    if n < 2:
        return n
    return ciel.call(add, fib.spawn(n - 1), fib.spawn(n - 2))


def main() -> None:
    """Print the N-th Fibonacci number, by default the 20th."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with ciel.Client() as client:
        print(client.submit(fib, n).result())


if __name__ == "__main__":
    main()
