"""Assign each point to the nearest of some means, and sum the points of each mean.

This is a task in Python: its arguments are a reference to points, and the means. It writes a row
for each mean: the number of its points, and their sum in each dimension.
"""

import json
from math import dist

from ciel.executors.sdk import ciel_task


def run(task: ciel_task.Task) -> None:
    """Publish the rows."""
    part, middles = task.args
    rows = [[0] * (1 + len(middle)) for middle in middles]
    for point in json.loads(task.read(part)):
        distances = [dist(point, middle) for middle in middles]
        row = rows[distances.index(min(distances))]
        for place, number in enumerate([1, *point]):
            row[place] += number
    task.publish(0, json.dumps(rows).encode())


ciel_task.serve(run)
