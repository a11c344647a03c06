#!/usr/bin/env python3
"""Spawns a child that never ends and a brief one; its successor reports which output exists."""

import ciel_task


def run(task: ciel_task.Task) -> None:
    role, *refs = task.args
    if role == "chooses":
        is_there = ["filename" in task.call("open_ref", ref=ref) for ref in refs]
        (made,) = [ref for ref, made in zip(refs, is_there, strict=True) if made]
        task.publish(0, b"%d of %d: %b" % (is_there.index(True) + 1, len(refs), task.read(made)))
        return
    (endless,) = task.spawn("stdinout", args={"command_line": ["sleep", "1000"]})
    (brief,) = task.spawn("stdinout", args={"command_line": ["echo", "brief"]})
    choice = [endless, brief]
    pargs, command = ["chooses", *choice], task.private["command"]
    task.tail_spawn("proc", command=command, proc_pargs=pargs, any_dependencies=choice)


ciel_task.serve(run)
