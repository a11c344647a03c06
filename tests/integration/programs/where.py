"""A task that says on which host it is, and how many bytes its inputs have."""

import os

from ciel.executors.sdk import ciel_task


def run(task: ciel_task.Task) -> None:
    """Look at all inputs."""
    size = sum(len(task.read(ref)) for ref in task.args)
    task.publish(0, f"{os.readlink('/proc/self/ns/net')}\n{size}\n".encode())


ciel_task.serve(run)
