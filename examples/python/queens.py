"""In how many ways N queens stand on a board without threatening each other: a search whose tree
nobody knows before. Each task spawns one for every place that is left, and waits for all of them;
while it waits, its slot is free for others.

    python examples/python/queens.py [N]
"""

import sys

import ciel

ALONE = 5
"""A task that has fewer rows left than this tries them itself."""


def free(size: int, placed: tuple[int, ...]) -> list[int]:
    """Return where a queen may stand in the next row; `placed` has the columns of those before."""
    row = len(placed)
    return [
        column
        for column in range(size)
        if all(column != other and abs(column - other) != row - i for i, other in enumerate(placed))
    ]


def count_here(size: int, placed: tuple[int, ...]) -> int:
    """Count the ways to go on, without further tasks."""
    if len(placed) == size:
        return 1
    return sum(count_here(size, (*placed, column)) for column in free(size, placed))


@ciel.task
def count(size: int, placed: tuple[int, ...] = ()) -> int:
    """Count the ways to go on, by a task for each."""
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
