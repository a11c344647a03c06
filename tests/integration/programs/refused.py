#!/usr/bin/env python3
"""Writes as many letters as it is told, and says nothing if it was refused some, unless told to;
spawns a child before, if it is to.
"""

from contextlib import suppress

import ciel_task

PART_BYTES = 1 << 20


def run(task: ciel_task.Task) -> None:
    size_bytes, says_so, spawns = task.args
    if spawns:
        task.spawn("stdinout", args={"command_line": ["true"]})
    with task.open_output() as out, suppress(*(() if says_so else (OSError,))):
        for _ in range(size_bytes // PART_BYTES):
            out.write(b"a" * PART_BYTES)


ciel_task.serve(run)
