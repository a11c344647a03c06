#!/usr/bin/env python3
"""Does the same as nested.c."""

import ciel_task


def run(task: ciel_task.Task) -> None:
    role, number = task.args
    command = task.private["command"]
    if role == "successor" or number == 0:
        task.publish(0, b"%d" % (number + 1))
        return
    child = task.spawn("proc", command=command, proc_pargs=["nested", number - 1])
    found = int(task.read(child))
    task.tail_spawn("proc", command=command, proc_pargs=["successor", found])


ciel_task.serve(run)
