#!/usr/bin/env python3
"""As streams.c."""

import os
import time
from array import array
from typing import Any

import ciel_task

STEP, STEPS = 1 << 18, 64


def produce(task: ciel_task.Task, first: int, may_stream: bool, may_pipe: bool, mark: Any) -> None:
    with task.open_output(0, may_stream=may_stream, may_pipe=may_pipe) as output:
        for step in range(STEPS):
            output.write(array("I", range(first + step * STEP, first + (step + 1) * STEP)))
            if step == 0:
                output.flush()
                until_s = time.monotonic() + 20
                while mark and not os.path.exists(mark) and time.monotonic() < until_s:
                    time.sleep(0.001)
    task.publish(1, os.environ["CIEL_WORKER"].encode())


def consume(task: ciel_task.Task, refs: list[Any], how: Any, mark: Any) -> None:
    total = 0
    for ref in refs:
        if how is None:
            file = task.open(ref)
        else:
            file = task.open_stream(ref, sole_consumer=how[0], must_block=how[1])
        with file:
            expected = None
            while piece := file.read(4 * STEP):
                numbers = array("I", piece)
                expected = numbers[0] if expected is None else expected
                if numbers != array("I", range(expected, expected + len(numbers))):
                    task.fail("wrong content")
                expected += len(numbers)
                total += len(piece)
                if mark:
                    open(mark, "w").close()
    task.publish(0, f"{total} {os.environ['CIEL_WORKER']}".encode())


def run(task: ciel_task.Task) -> None:
    role, *args = task.args
    (produce if role == "produce" else consume)(task, *args)


ciel_task.serve(run)
