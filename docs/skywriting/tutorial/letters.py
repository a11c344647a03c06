#!/usr/bin/env python3
"""A task that counts how often each letter occurs in an object."""

import json
from collections import Counter

from ciel.executors.sdk import ciel_task


def run(task: ciel_task.Task) -> None:
    """Count, and publish the counts as JSON."""
    text = task.read(task.args[0]).decode().lower()
    counts = Counter(letter for letter in text if letter.isalpha())
    task.publish(0, json.dumps(counts).encode())


ciel_task.serve(run)
