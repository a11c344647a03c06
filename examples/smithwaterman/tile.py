"""One tile of the table of a local alignment: a task in Python.

Its arguments are the letters of the columns and rows, the lower edge of the tile above, and the
right edge of the tile to the left: references, or null at the border of the table. It has three
outputs: its own two edges, and its highest score. A lower edge begins with the score of the
preceding corner.
"""

from __future__ import annotations

import json

from ciel.executors.sdk import ciel_task

MATCH, MISMATCH, GAP = 2, -1, -1


def fill(
    across: str, down: str, above: list[int], left: list[int]
) -> tuple[list[int], list[int], int]:
    """Fill the tile; return its lower edge, its right edge, and its highest score."""
    right, best = [], 0
    for letter, score in zip(down, left, strict=True):
        row = [score]
        for column, other in enumerate(across, start=1):
            step = above[column - 1] + (MATCH if letter == other else MISMATCH)
            row.append(max(0, step, above[column] + GAP, row[-1] + GAP))
        above = row
        right.append(row[-1])
        best = max(best, *row)
    return above, right, best


def run(task: ciel_task.Task) -> None:
    """Read the neighbours' edges, and publish three outputs."""
    across, down, *refs = task.args
    beyond = [0] * (len(across) + 1), [0] * len(down)
    above, left = (
        json.loads(task.read(ref)) if ref else zeros
        for ref, zeros in zip(refs, beyond, strict=True)
    )
    for index, made in enumerate(fill(across, down, above, left)):
        task.publish(index, json.dumps(made).encode())


ciel_task.serve(run)
