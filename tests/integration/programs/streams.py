#!/usr/bin/env python3
"""Does the same as streams.c, with numbered blocks instead of numbers."""

import os
import time
from array import array
from typing import Any

import ciel_task

STEP_BYTES, STEPS = 1 << 20, 64
BLOCK = array("I", range(STEP_BYTES // 4)).tobytes()


def block(number: int) -> bytes:
    return number.to_bytes(8, "big") + BLOCK[8:]


def meet(mine: Any, other: Any) -> None:
    if mine:
        open(mine, "w").close()
    until_s = time.monotonic() + 20
    while other and not os.path.exists(other) and time.monotonic() < until_s:
        time.sleep(0.001)


def produce(task: Any, first: int, may_stream: bool, may_pipe: bool, marks: Any) -> None:
    with task.open_output(0, may_stream=may_stream, may_pipe=may_pipe) as output:
        for step in range(STEPS):
            output.write(block(first + step))
            if step == 0:
                output.flush()
                meet(*marks)
    task.publish(1, os.environ["CIEL_WORKER"].encode())


def consume(task: Any, refs: Any, how: Any, marks: Any) -> None:
    total = 0
    for ref in refs:
        if how is None:
            file = task.open(ref)
        else:
            file = task.open_stream(ref, sole_consumer=how[0], must_block=how[1])
        with file:
            start = file.read(8)
            meet(*marks)
            first, step = int.from_bytes(start, "big"), 0
            while piece := start + file.read(STEP_BYTES - len(start)):
                if piece != block(first + step):
                    task.fail("wrong content")
                start, step = b"", step + 1
                total += len(piece)
    task.publish(0, f"{total} {os.environ['CIEL_WORKER']}".encode())


def run(task: ciel_task.Task) -> None:
    role, *args = task.args
    (produce if role == "produce" else consume)(task, *args)


ciel_task.serve(run)
