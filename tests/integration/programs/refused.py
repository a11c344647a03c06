#!/usr/bin/env python3
"""Writes the given number of letters. The second argument decides whether it reports errors of
these writes, the third whether it first spawns a child.
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
