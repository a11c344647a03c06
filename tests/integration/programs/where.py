"""Prints on which host it runs, and the total size of its inputs."""

import os

from ciel.executors.sdk import ciel_task


def run(task: ciel_task.Task) -> None:
    """Publish the host, and the total size of the inputs."""
    size = sum(len(task.read(ref)) for ref in task.args)
    task.publish(0, f"{os.readlink('/proc/self/ns/net')}\n{size}\n".encode())


ciel_task.serve(run)
