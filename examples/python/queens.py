"""Count the ways to place N queens on a board so that they do not attack each other.

This is a search whose tree is not known in advance. Each task spawns a task for each free place in
the next row, and waits for all of them; while it waits, its slot is free for other tasks.

    python examples/python/queens.py [N]
"""

import sys

import ciel

ALONE = 5
"""A task with fewer remaining rows searches them itself."""


def free(size: int, placed: tuple[int, ...]) -> list[int]:
    """Return the free columns of the next row; `placed` has the columns of the previous ones."""
    row = len(placed)
    return [
        column
        for column in range(size)
        if all(column != other and abs(column - other) != row - i for i, other in enumerate(placed))
    ]


def count_here(size: int, placed: tuple[int, ...]) -> int:
    """Count the ways to place the remaining queens, without further tasks."""
    if len(placed) == size:
        return 1
    return sum(count_here(size, (*placed, column)) for column in free(size, placed))


@ciel.task
def count(size: int, placed: tuple[int, ...] = ()) -> int:
    """Count the ways to place the remaining queens, with a task for each column."""
    if size - len(placed) < ALONE:
        return count_here(size, placed)
    return sum(ciel.gather([count.spawn(size, (*placed, column)) for column in free(size, placed)]))


def main() -> None:
    """Count on a board of N by N."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with ciel.Client() as client:
        print(client.submit(count, size).result())


if __name__ == "__main__":
    main()
