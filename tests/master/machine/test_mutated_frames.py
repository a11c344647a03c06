"""Tests frames of clients and workers with a random change: the master refuses each one as a frame
or as a request, and its machine goes on.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from ciel.core.errors import CielError
from ciel.core.events import (
    AddTask,
    Ask,
    CancelJob,
    Change,
    CloseJob,
    CopyTimed,
    DiskQueued,
    InputsLost,
    Message,
    ObjectsStored,
    Received,
    ReleaseObjects,
    ReplicateObjects,
    SpawnTask,
    StoresReported,
    StreamsOpened,
    SubmitJob,
    TaskFault,
    TaskPrinted,
    TaskReported,
    WantObjects,
    WatchJob,
    WorkersUnreached,
)
from ciel.core.graph.invariants import validate
from ciel.core.ids import JobId, ObjectId
from ciel.core.refs import Failure, Fixed, Stream
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries import topics
from ciel.testing.builders import JOB, a_job_spec, a_task, a_worker, inline, place_of, stored
from ciel.wire import codec, messages
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json

ROUNDS = 20_000 if os.environ.get("CIEL_LONG") == "1" else 400
W1 = place_of("w1")
ROOT, READER = a_task("root"), a_task("reader", inputs=["root"])
CHILD = a_task("child", inputs=["up"])._replace(parent=ROOT.id)
FROM_CLIENT: Sequence[Message] = (
    SubmitJob(a_job_spec(JOB)),
    AddTask(ROOT, ()),
    AddTask(READER, (stored("up", W1), inline("in"), Failure(ObjectId("bad"), "X", "y"))),
    WantObjects(JobId(JOB), (ObjectId("reader"), ObjectId("root"))),
    WatchJob(JobId(JOB), True),
    ReleaseObjects(JobId(JOB), (ObjectId("root"),), True),
    ReplicateObjects(JobId(JOB), 2, (stored("copied", W1),)),
    CloseJob(JobId(JOB)),
    Ask(1, "jobs", {"limit": 10, "first": 1, "last": 5}),
    Ask(2, "tasks", {"job": 1, "first": 0, "elements": [1, 5, 1], "state": "waiting"}),
    Ask(3, "graph", {"job": "last", "first": [0, 0]}),
    Ask(4, "trace", {"jobs": [1], "first": 0}),
    Ask(5, "task", {"object": "root"}),
    Ask(6, "objects", {"first": 0, "prefix": ""}),
    Change(7, "retry", {"job": JOB}),
    Change(8, "keep", {"name": "n", "reference": to_json(stored("up", W1))}),
    Change(9, "remove", {"job": JOB}),
    CancelJob(JobId(JOB), "enough"),
    Received(3),
)
FROM_WORKER: Sequence[Message] = (
    SpawnTask(CHILD, (stored("up", W1),), 1, True, True),
    StreamsOpened(ROOT.id, 1, (Stream(ObjectId("root"), frozenset({W1})),)),
    ObjectsStored((stored("up", W1), Fixed(ObjectId("fixed"), W1)), True, True),
    TaskPrinted(ROOT.id, 1, 0, 5, "hello"),
    InputsLost(ROOT.id, 1, ((ObjectId("up"), W1),), "gone"),
    DiskQueued(10, 0.5),
    CopyTimed(W1, 10_000_000, 0.5),
    WorkersUnreached((W1, "nowhere:1")),
    StoresReported(({"name": "disk", "used_bytes": 1, "capacity_bytes": None},), 0),
    TaskReported(ROOT.id, 1, (inline("root"), stored("more", W1)), None, 0.1),
    TaskReported(ROOT.id, 1, (), TaskFault("RUNTIME_ERROR", {"text": "no"}), 0.1),
)
JUNK: Sequence[Any] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**64, 10**400, 1.5, -0.0, "", "last", "1", "x",
    "\x00", "é" * 200, [], [[]], {}, {"job": []}, [None], ["root"], [1, "root"], {"": {}},
    JOB, "root", "reader", ROOT.id, W1, "w1",
)  # fmt: skip


def mutate(value: Any, chance: Random) -> Any:
    """Return a record with one value changed, left out, doubled or moved."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        inner = pending.pop()
        keys = range(len(inner)) if isinstance(inner, list) else list(inner)
        for key in keys:
            places.append((inner, key))
            if isinstance(inner[key], list | dict):
                pending.append(inner[key])
    inner, key = chance.choice(places[1:] or places)
    match chance.randrange(4):
        case 0 if isinstance(inner, list):
            del inner[key]
        case 1 if isinstance(inner, list):
            inner.insert(key, chance.choice(JUNK))
        case 2:
            other, place = chance.choice(places[1:] or places)
            inner[key] = copy.deepcopy(other[place])
        case _:
            inner[key] = chance.choice(JUNK)
    return value


class Faced:
    """A machine with a worker and a client that may send any message."""

    def __init__(self) -> None:
        self.machine = MasterMachine()
        self.machine.worker_joined(a_worker("w1"), 0.0)
        self.machine.end_tick(0.0)
        self.now_s = 1.0

    def says(self, message: Message, *, is_worker: bool) -> None:
        machine = self.machine
        self.now_s += 0.01
        if is_worker:
            machine.worker_sent("w1", message, self.now_s)
        elif isinstance(message, Ask):
            codec.encode(
                to_json(topics.answer(machine, message.topic, message.argument, self.now_s))
            )
        elif isinstance(message, Change):
            topics.change(machine, message.topic, from_json(message.argument), self.now_s)
        elif not isinstance(message, Received):
            machine.client_sent("c", message, self.now_s)

    def hears(self, record: tuple[list[Any], bytes], *, is_worker: bool) -> None:
        allowed = messages.FROM_WORKER if is_worker else messages.FROM_CLIENT
        try:
            message = messages.decode(record, allowed)
        except WireError:
            return  # the frame is refused
        self.takes(message, is_worker=is_worker)

    def takes(self, message: Message, *, is_worker: bool = False) -> None:
        try:
            self.says(message, is_worker=is_worker)
        except (WireError, CielError):
            pass  # the request is refused
        self.machine.end_tick(self.now_s)
        outbox = self.machine.take_outbox()
        for _, message in outbox:
            codec.encode(messages.encode(message)[0])


@pytest.mark.parametrize("seed", range(8))
def test_a_mutated_frame_is_refused_and_the_master_goes_on(seed: int) -> None:
    chance = Random(seed)
    script = [(message, False) for message in FROM_CLIENT]
    script[7:7] = [(message, True) for message in FROM_WORKER]
    for _ in range(ROUNDS // 8):
        faced = Faced()
        changed = chance.randrange(len(script))
        for place, (message, is_worker) in enumerate(script):
            fields, payload = messages.encode(message)
            fields = codec.decode(codec.encode(fields))
            if place == changed:
                if isinstance(message, Ask | Change) and chance.random() < 0.7:
                    argument = mutate([codec.decode(payload)], chance)
                    message = message._replace(argument=argument[0] if argument else None)
                    faced.takes(message)
                    continue
                fields = mutate([fields], chance)
                fields = fields[0] if fields else []
                if not (isinstance(fields, list) and fields and isinstance(fields[0], str)):
                    continue  # refused because it is not a record
            faced.hears((fields, payload), is_worker=is_worker)
        validate(faced.machine.graph)
