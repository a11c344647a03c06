"""Encodes and decodes control messages: one record each, `[kind, field, …]` and an opaque payload.

One table has the encoder and the decoder of each message; `encode` and `decode` only use this
table. Decoders check all fields, so every message is well-formed. The receiver decides which kinds
a peer may send, and passes them to `decode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ciel.core.errors import InvalidIdError
from ciel.core.events import (
    AddTask,
    Answer,
    Ask,
    AssignTask,
    CancelJob,
    CancelTask,
    Change,
    CloseJob,
    CopyTimed,
    DescribeJob,
    DiskQueued,
    DropObjects,
    Heartbeat,
    InputsLost,
    JobChanged,
    JobPrinted,
    MeetWorkers,
    Message,
    Neighbour,
    ObjectSettled,
    ObjectsStored,
    RecallTasks,
    Received,
    ReleaseObjects,
    RequestRefused,
    SpawnTask,
    StoresReported,
    StreamsOpened,
    SubmitJob,
    TaskFault,
    TaskPrinted,
    TaskReported,
    WantObjects,
    WatchJob,
)
from ciel.core.ids import check_id
from ciel.core.refs import Reference
from ciel.wire import codec
from ciel.wire.descriptors import (
    TASK_FIELD_COUNT,
    context_fields,
    job_fields,
    read_context,
    read_ids,
    read_job,
    read_summary,
    read_task,
    task_fields,
)
from ciel.wire.errors import DecodeError
from ciel.wire.frames import Record
from ciel.wire.references import from_array, to_array

Fields = list[Any]
N = TASK_FIELD_COUNT
SECONDS_MAX = 1e10  # three centuries
_EXIT_STATUS_MAX = 255
_SIGNAL_MAX = 64
COUNT_MAX = 2**63  # larger numbers cannot be stored, or divided as floats
LEVELS_MAX = 8  # of a store; there are two


class Form(NamedTuple):
    """The encoder and the decoder of one kind of message. Both use fields without the kind, and a
    payload.
    """

    kind: str
    write: Callable[[Any], tuple[Fields, bytes]]
    read: Callable[[Fields, bytes], Any]


def _arrays(refs: Iterable[Reference]) -> list[list[Any]]:
    return [to_array(ref) for ref in refs]


def _refs(value: Any) -> tuple[Reference, ...]:
    if value == []:
        return ()
    if not isinstance(value, list):
        raise DecodeError("a list of references was expected")
    return tuple([from_array(item) for item in value])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise DecodeError("a text was expected")
    return value


def _details(value: Any) -> Any:
    """Read the details of a fault: a text, or an object of texts."""
    if not isinstance(value, dict):
        return _text(value)
    return {_text(key): _text(item) for key, item in value.items()}


def _read_spawn_flags(value: Any) -> tuple[bool, bool]:
    """Read whether a child was started locally, and whether its parent waits for it."""
    number = _count(value)
    if number > 3:
        raise DecodeError("how a child is spawned must be a number that is known here")
    return bool(number & 1), bool(number & 2)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < COUNT_MAX:
        raise DecodeError("a whole number was expected")
    return value


def _seconds(value: Any) -> float:
    if (type(value) is float or type(value) is int) and 0 <= value < SECONDS_MAX:
        return value
    raise DecodeError("a number of seconds was expected")


def _id(value: Any) -> Any:
    return check_id(value)


def _write_report(m: TaskReported) -> tuple[Fields, bytes]:
    fault = 0 if m.fault is None else list(m.fault)
    fields = [m.task, m.attempt, _arrays(m.published), fault, round(m.run_s, 6)]
    if m.exit_status is not None:
        fields.append(m.exit_status)
    return fields, b""


def _read_report(f: Fields, payload: bytes) -> TaskReported:
    fault = None
    if f[3] != 0 or type(f[3]) is not int:
        if not isinstance(f[3], list) or len(f[3]) != 2:
            raise DecodeError("a fault must be a reason and details")
        fault = TaskFault(_text(f[3][0]), _details(f[3][1]))
    exit_status = _exit_status(f[5]) if len(f) > 5 else None
    return TaskReported(_id(f[0]), _count(f[1]), _refs(f[2]), fault, _seconds(f[4]), exit_status)


def _exit_status(value: Any) -> int:
    if type(value) is not int or not -_SIGNAL_MAX <= value <= _EXIT_STATUS_MAX:
        raise DecodeError("how a program ended must be an exit status or minus a signal")
    return value


def _read_losses(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 2 for i in value):
        raise DecodeError("losses must be pairs of object and location")
    return tuple([(_id(object_id), _text(place)) for object_id, place in value])


def _read_attempts(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 2 for i in value):
        raise DecodeError("attempts must be pairs of task and number")
    return tuple([(_id(task), _count(attempt)) for task, attempt in value])


def _read_neighbours(value: Any) -> tuple[Neighbour, ...]:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 2 for i in value):
        raise DecodeError("neighbours must be pairs of texts")
    return tuple([Neighbour(*map(_text, item)) for item in value])


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DecodeError("a list of texts was expected")
    return tuple(map(_text, value))


def _read_levels(value: Any) -> tuple[dict[str, Any], ...]:
    """Read a worker's report about the levels of its store: names, and numbers that may be null."""
    if not isinstance(value, list) or len(value) > LEVELS_MAX:
        raise DecodeError(f"a list of at most {LEVELS_MAX} levels was expected")
    for level in value:
        if not isinstance(level, dict) or not isinstance(level.get("name"), str):
            raise DecodeError("a level of a store must be an object with a name")
        for name, item in level.items():
            if name != "name" and item is not None:
                _count(item)
    return tuple(value)


def _read_answer(f: Fields, payload: bytes) -> Answer:
    return Answer(_count(f[0]), codec.decode(payload), _text(f[1]))


def _read_ask(f: Fields, payload: bytes) -> Ask:
    return Ask(_count(f[0]), _text(f[1]), codec.decode(payload))


def _read_change(f: Fields, payload: bytes) -> Change:
    return Change(_count(f[0]), _text(f[1]), codec.decode(payload))


_FORMS: dict[type, Form] = {
    SubmitJob: Form(
        "job", lambda m: (job_fields(m.spec), b""), lambda f, p: SubmitJob(read_job(f))
    ),
    AddTask: Form(
        "task",
        lambda m: ([*task_fields(m.spec), _arrays(m.known)], m.spec.payload),
        lambda f, p: AddTask(read_task(f[:N], p), _refs(f[N])),
    ),
    WantObjects: Form(
        "want",
        lambda m: ([m.job, m.objects], b""),
        lambda f, p: WantObjects(_id(f[0]), read_ids(f[1])),
    ),
    ReleaseObjects: Form(
        "release",
        lambda m: ([m.job, m.objects, int(m.for_good), _arrays(m.uploads)], b""),
        lambda f, p: ReleaseObjects(_id(f[0]), read_ids(f[1]), bool(_count(f[2])), _refs(f[3])),
    ),
    CloseJob: Form("close", lambda m: ([m.job], b""), lambda f, p: CloseJob(_id(f[0]))),
    CancelJob: Form(
        "cancel_job",
        lambda m: ([m.job, m.reason], b""),
        lambda f, p: CancelJob(_id(f[0]), _text(f[1])),
    ),
    WatchJob: Form(
        "watch",
        lambda m: ([m.job, int(m.prints)], b""),
        lambda f, p: WatchJob(_id(f[0]), bool(_count(f[1]))),
    ),
    Ask: Form("ask", lambda m: ([m.number, m.topic], codec.encode(m.argument)), _read_ask),
    Change: Form("change", lambda m: ([m.number, m.topic], codec.encode(m.argument)), _read_change),
    ObjectSettled: Form(
        "settled",
        lambda m: ([m.job, to_array(m.ref)], b""),
        lambda f, p: ObjectSettled(_id(f[0]), from_array(f[1])),
    ),
    JobChanged: Form(
        "job_changed",
        lambda m: ([list(m.summary)], b""),
        lambda f, p: JobChanged(read_summary(f[0])),
    ),
    RequestRefused: Form(
        "request_refused",
        lambda m: ([m.job, m.reason], b""),
        lambda f, p: RequestRefused(_id(f[0]), _text(f[1])),
    ),
    JobPrinted: Form(
        "printed",
        lambda m: ([*m[:-3], int(m.is_stderr) | m.is_notice << 1], m.text.encode()),
        lambda f, p: JobPrinted(
            _id(f[0]),
            _id(f[1]),
            _text(f[2]),
            _count(f[3]),
            _text(f[4]),
            _count(f[5]),
            _count(f[6]),
            p.decode(),
            bool(_count(f[7]) & 1),
            bool(f[7] & 2),
        ),
    ),
    Answer: Form("answer", lambda m: ([m.number, m.error], codec.encode(m.value)), _read_answer),
    DescribeJob: Form(
        "describe",
        lambda m: ([m.job, context_fields(m.context)], b""),
        lambda f, p: DescribeJob(_id(f[0]), read_context(f[1])),
    ),
    AssignTask: Form(
        "assign",
        lambda m: ([*task_fields(m.spec), m.attempt, _arrays(m.inputs)], m.spec.payload),
        lambda f, p: AssignTask(read_task(f[:N], p), _count(f[N]), _refs(f[N + 1])),
    ),
    CancelTask: Form(
        "cancel_task",
        lambda m: ([m.task, m.attempt, int(m.aborts)], b""),
        lambda f, p: CancelTask(_id(f[0]), _count(f[1]), bool(_count(f[2]))),
    ),
    RecallTasks: Form(
        "recall",
        lambda m: ([[list(key) for key in m.attempts]], b""),
        lambda f, p: RecallTasks(_read_attempts(f[0])),
    ),
    DropObjects: Form(
        "drop",
        lambda m: ([m.objects, int(m.unless_complete)], b""),
        lambda f, p: DropObjects(read_ids(f[0]), bool(_count(f[1]))),
    ),
    MeetWorkers: Form(
        "meet",
        lambda m: ([[list(n) for n in m.neighbours], list(m.gone), int(m.is_complete)], b""),
        lambda f, p: MeetWorkers(_read_neighbours(f[0]), _read_texts(f[1]), bool(_count(f[2]))),
    ),
    TaskReported: Form("report", _write_report, _read_report),
    SpawnTask: Form(
        "spawn",
        lambda m: (
            [*task_fields(m.spec), _arrays(m.known), m.attempt, int(m.started) + 2 * m.wanted],
            m.spec.payload,
        ),
        lambda f, p: SpawnTask(
            read_task(f[:N], p), _refs(f[N]), _count(f[N + 1]), *_read_spawn_flags(f[N + 2])
        ),
    ),
    StreamsOpened: Form(
        "streams",
        lambda m: ([m.task, m.attempt, _arrays(m.refs)], b""),
        lambda f, p: StreamsOpened(_id(f[0]), _count(f[1]), _refs(f[2])),
    ),
    ObjectsStored: Form(
        "stored",
        lambda m: ([_arrays(m.refs), m.kept + 2 * m.idle], b""),
        lambda f, p: ObjectsStored(_refs(f[0]), bool(_count(f[1]) & 1), bool(f[1] & 2)),
    ),
    TaskPrinted: Form(
        "prints",
        lambda m: ([*m[:-3], int(m.is_stderr) | m.is_notice << 1], m.text.encode()),
        lambda f, p: TaskPrinted(
            _id(f[0]),
            _count(f[1]),
            _count(f[2]),
            _count(f[3]),
            p.decode(),
            bool(_count(f[4]) & 1),
            bool(f[4] & 2),
        ),
    ),
    InputsLost: Form(
        "lost",
        lambda m: (
            [m.task, m.attempt, [list(loss) for loss in m.losses], m.details, int(m.lacks_room)],
            b"",
        ),
        lambda f, p: InputsLost(
            _id(f[0]), _count(f[1]), _read_losses(f[2]), _text(f[3]), bool(_count(f[4]))
        ),
    ),
    DiskQueued: Form(
        "disk",
        lambda m: ([m.pending_bytes, round(m.wait_s, 6)], b""),
        lambda f, p: DiskQueued(_count(f[0]), _seconds(f[1])),
    ),
    CopyTimed: Form(
        "copied",
        lambda m: ([m.netloc, m.size_bytes, round(m.run_s, 6)], b""),
        lambda f, p: CopyTimed(_text(f[0]), _count(f[1]), _seconds(f[2])),
    ),
    StoresReported: Form(
        "stores",
        lambda m: ([list(m.levels), m.disk_waiting], b""),
        lambda f, p: StoresReported(_read_levels(f[0]), _count(f[1])),
    ),
    Received: Form("received", lambda m: ([m.total], b""), lambda f, p: Received(_count(f[0]))),
    Heartbeat: Form("alive", lambda m: ([], b""), lambda f, p: Heartbeat()),
}
_BY_KIND: dict[str, tuple[type, Callable[[Fields, bytes], Any]]] = {
    form.kind: (message, form.read) for message, form in _FORMS.items()
}

FROM_CLIENT: frozenset[type] = frozenset(
    (
        SubmitJob, AddTask, WantObjects, ReleaseObjects, CloseJob, CancelJob, WatchJob, Ask, Change,
        Received, Heartbeat,
    )
)  # fmt: skip
TO_CLIENT: frozenset[type] = frozenset(
    (ObjectSettled, JobChanged, RequestRefused, JobPrinted, Answer, Received, Heartbeat)
)
FROM_WORKER: frozenset[type] = frozenset(
    (
        TaskReported,
        SpawnTask,
        StreamsOpened,
        ObjectsStored,
        TaskPrinted,
        InputsLost,
        DiskQueued,
        CopyTimed,
        StoresReported,
        Change,
        Received,
        Heartbeat,
    )
)
TO_WORKER: frozenset[type] = frozenset(
    (
        DescribeJob, AssignTask, CancelTask, RecallTasks, DropObjects, MeetWorkers, Answer,
        Received, Heartbeat,
    )
)  # fmt: skip


def kind_of(message: type) -> str:
    """Return the kind of a class of messages on the wire."""
    return _FORMS[message].kind


def encode(message: Message) -> Record:
    """Encode a message as a record for `Session.send`."""
    form = _FORMS[type(message)]
    fields, payload = form.write(message)
    return [form.kind, *fields], payload


def encode_all(messages: Iterable[Message]) -> list[Record]:
    """Encode messages as records, in order."""
    return [encode(message) for message in messages]


def decode_all(records: Iterable[Record], allowed: frozenset[type]) -> list[Message]:
    """Decode records in order, and drop heartbeats."""
    messages = []
    for record in records:
        message = decode(record, allowed)
        if type(message) is not Heartbeat:
            messages.append(message)
    return messages


def decode(record: Record, allowed: frozenset[type]) -> Message:
    """Decode a record that a session received.

    Raises DecodeError with the kind if the record is malformed, or its kind is unknown or not
    `allowed`.
    """
    fields, payload = record
    kind = fields[0]
    known = _BY_KIND.get(kind) if type(kind) is str else None
    if known is None or known[0] not in allowed:
        raise DecodeError(f"a record of the kind {kind!r:.60} is not expected here")
    try:
        return known[1](fields[1:], payload)  # type: ignore[no-any-return]  # the table's readers return messages
    except (DecodeError, InvalidIdError) as error:
        why = f": {error}"
    except (IndexError, ValueError, TypeError) as error:
        why = f" ({type(error).__name__})"
    raise DecodeError(f"a record of the kind {kind!r} is malformed{why}")
