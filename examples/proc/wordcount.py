#!/usr/bin/env python3
"""Count the words of an object: a task in Python."""

import ciel_task


def run(task: ciel_task.Task) -> None:
    """Count, and publish the number."""
    with task.open(task.args[0]) as text:
        words = sum(len(line.split()) for line in text)
    task.publish(0, b"%d\n" % words)


ciel_task.serve(run)
