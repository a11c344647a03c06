"""Encodes and decodes control messages: one record each, `[kind, field, …]` and an opaque payload.

Most messages are a row of `_PLAIN`, which names the codec of each field; `_SPECIAL` has the others.
Decoders check all fields, so every message is well-formed. The unions in `core.events` say which
messages a peer may send; the receiver passes one of them to `decode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_args

from ciel.core.errors import InvalidIdError
from ciel.core.events import (
    AddTask,
    AllowToken,
    Answer,
    Ask,
    AssignTask,
    AttemptFailed,
    AttemptsKept,
    CancelJob,
    CancelTask,
    Change,
    CloseJob,
    CompareObjects,
    ConnectServer,
    ContentDiffers,
    CopyObjects,
    CopyTimed,
    DescribeJob,
    DiskLimit,
    DiskQueued,
    DismissServer,
    DismissWorker,
    DrainWorker,
    DropObjects,
    ExtentPlaced,
    ExtentRole,
    ExtentsOffered,
    ExtentsPlaced,
    ExtentSynced,
    FromClient,
    FromMemory,
    FromService,
    FromStandby,
    FromWorker,
    Heartbeat,
    InJournal,
    InputsLost,
    JobChanged,
    JobNoted,
    JobPrinted,
    JournalCompacted,
    JournalCopied,
    JournalCopyEnds,
    JournalGrew,
    JournalStored,
    KeepExtents,
    LeaseAsked,
    LeaseGranted,
    MastersNamed,
    MasterStarted,
    MeetWorkers,
    MemoryReported,
    MemoryServerLeft,
    MemoryServerSeen,
    Message,
    Neighbour,
    NotCopied,
    ObjectSettled,
    ObjectsStored,
    OfferChanged,
    PeerServerLost,
    RecallTasks,
    Received,
    ReleaseObjects,
    ReplicateObjects,
    RequestRefused,
    RolesTaken,
    ServiceOpened,
    SpawnTask,
    StartOver,
    StateChanged,
    StateSet,
    StoreListed,
    StoresReported,
    StreamsOpened,
    SubmitJob,
    SuccessionChanged,
    TakeRoles,
    TaskFault,
    TaskPrinted,
    TaskReported,
    ToClient,
    ToMemory,
    ToStandby,
    ToWorker,
    VolumeCreated,
    VolumeRemoved,
    WantObjects,
    WatchJob,
    WorkerLeft,
    WorkerSeen,
    WorkersUnreached,
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
from ciel.wire.masters import succession_from_json, succession_to_json
from ciel.wire.references import from_array, to_array

Fields = list[Any]
N = TASK_FIELD_COUNT
SECONDS_MAX = 1e10  # three centuries
_EXIT_STATUS_MAX = 255
_SIGNAL_MAX = 64
COUNT_MAX = 2**63  # larger numbers cannot be stored, or divided as floats
LEVELS_MAX = 8  # of a store; there are two
FIGURES_MAX = 64  # of a memory server; there are fewer than twenty


class Form(NamedTuple):
    """The encoder and the decoder of one kind of message.

    Both use fields without the kind, and a payload.
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


def _printed(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"printed text must be UTF-8: {error}") from None


def _details(value: Any) -> Any:
    """Read the details of a fault: a text, or an object of texts."""
    if not isinstance(value, dict):
        return _text(value)
    return {_text(key): _text(item) for key, item in value.items()}


def _read_spawn_flags(value: Any) -> tuple[bool, bool]:
    """Read whether a child was started locally, and whether its parent waits for it."""
    number = _count(value)
    if number > 3:
        raise DecodeError("the flags of a spawned task must be 0 to 3")
    return bool(number & 1), bool(number & 2)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < COUNT_MAX:
        raise DecodeError("a whole number was expected")
    return value


def _seconds(value: Any) -> float:
    if (type(value) is float or type(value) is int) and 0 <= value < SECONDS_MAX:
        return value
    raise DecodeError("a number of seconds was expected")


def _seconds_or_null(value: Any) -> float | None:
    return None if value is None else _seconds(value)


def _id(value: Any) -> Any:
    return check_id(value)


def _read_fault(value: Any) -> TaskFault:
    if not isinstance(value, list) or len(value) != 2:
        raise DecodeError("a fault must be a reason and details")
    return TaskFault(_text(value[0]), _details(value[1]))


def _write_assignment(m: AssignTask) -> tuple[Fields, bytes]:
    fields = [*task_fields(m.spec), m.attempt, _arrays(m.inputs), *m.taken]
    return fields, m.spec.payload


def _counts(values: Fields) -> tuple[int, ...]:
    return tuple([_count(value) for value in values])


def _write_report(m: TaskReported) -> tuple[Fields, bytes]:
    fault = 0 if m.fault is None else list(m.fault)
    fields = [m.task, m.attempt, _arrays(m.published), fault, round(m.run_s, 6)]
    if m.exit_status is not None:
        fields.append(m.exit_status)
    return fields, b""


def _read_report(f: Fields, payload: bytes) -> TaskReported:
    fault = None
    if f[3] != 0 or type(f[3]) is not int:
        fault = _read_fault(f[3])
    exit_status = _exit_status(f[5]) if len(f) > 5 else None
    return TaskReported(_id(f[0]), _count(f[1]), _refs(f[2]), fault, _seconds(f[4]), exit_status)


def _exit_status(value: Any) -> int:
    if type(value) is not int or not -_SIGNAL_MAX <= value <= _EXIT_STATUS_MAX:
        raise DecodeError("an exit status must be a number, or minus the number of a signal")
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
        raise DecodeError("neighbours must be pairs of strings")
    return tuple([Neighbour(*map(_text, item)) for item in value])


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DecodeError("expected a list of strings")
    return tuple(map(_text, value))


def _read_levels(value: Any) -> tuple[dict[str, Any], ...]:
    """Read a worker's report about the levels of its store: names, and numbers that may be null."""
    if not isinstance(value, list) or len(value) > LEVELS_MAX:
        raise DecodeError(f"a list of at most {LEVELS_MAX} levels of a store was expected")
    for level in value:
        if not isinstance(level, dict) or not isinstance(level.get("name"), str):
            raise DecodeError("a level of a store must be an object with a name")
        for name, item in level.items():
            if name != "name" and item is not None:
                _count(item)
    return tuple(value)


def _read_figures(value: Any) -> dict[str, int]:
    """Read the numbers of a memory server, by name."""
    if not isinstance(value, dict) or len(value) > FIGURES_MAX:
        raise DecodeError(f"an object of at most {FIGURES_MAX} numbers was expected")
    return {_text(name): _count(item) for name, item in value.items()}


def _read_answer(f: Fields, payload: bytes) -> Answer:
    return Answer(_count(f[0]), codec.decode(payload), _text(f[1]))


def _read_ask(f: Fields, payload: bytes) -> Ask:
    return Ask(_count(f[0]), _text(f[1]), codec.decode(payload))


def _read_change(f: Fields, payload: bytes) -> Change:
    return Change(_count(f[0]), _text(f[1]), codec.decode(payload))


def _read_numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise DecodeError("a list of numbers was expected")
    return tuple(map(_count, value))


def _read_roles(value: Any) -> tuple[ExtentRole, ...]:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 7 for i in value):
        raise DecodeError("roles must be lists of seven fields")
    roles = []
    for volume, extent, epoch, role, *peers in value:
        names = map(_read_numbers, peers)
        roles.append(
            ExtentRole(_count(volume), _count(extent), _count(epoch), _count(role), *names)
        )
    return tuple(roles)


def _read_extents(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 2 for i in value):
        raise DecodeError("extents must be pairs of numbers")
    return tuple([(_count(volume), _count(extent)) for volume, extent in value])


def _write_placed(placed: Iterable[ExtentPlaced]) -> list[list[Any]]:
    return [[p.extent, p.epoch, int(p.is_used), p.primary, p.in_sync] for p in placed]


def _read_placed(value: Any) -> tuple[ExtentPlaced, ...]:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 5 for i in value):
        raise DecodeError("decisions about extents must be lists of five fields")
    return tuple([
        ExtentPlaced(
            _count(extent), _count(epoch), _flag(is_used), _count(primary), _read_numbers(in_sync)
        )
        for extent, epoch, is_used, primary, in_sync in value
    ])  # fmt: skip


def _read_disks(value: Any) -> tuple[DiskLimit, ...]:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 3 for i in value):
        raise DecodeError("disks must be lists of a name, a device and a limit")
    return tuple(
        [DiskLimit(_text(io), _text(device), _count(limit)) for io, device, limit in value]
    )


def _read_offered(value: Any) -> tuple[tuple[int, int, int], ...]:
    if not isinstance(value, list) or not all(isinstance(i, list) and len(i) == 3 for i in value):
        raise DecodeError("offered extents must be lists of three numbers")
    return tuple(
        [(_count(volume), _count(extent), _count(epoch)) for volume, extent, epoch in value]
    )


class FieldCodec(NamedTuple):
    """Encodes and decodes one field of a message.

    `annotations`: the types of fields that may use it, as their messages spell them.
    """

    annotations: tuple[str, ...]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _as_is(value: Any) -> Any:
    return value


def _rounded(value: Any) -> Any:
    return round(value, 6)  # an int stays an int: it is written without a point


def _rounded_or_null(value: Any) -> Any:
    return None if value is None else _rounded(value)


def _flag(value: Any) -> bool:
    return bool(_count(value))


def _pairs(values: Iterable[Iterable[Any]]) -> list[list[Any]]:
    return [list(value) for value in values]


ID = FieldCodec(("JobId", "TaskId", "ObjectId"), _as_is, _id)
IDS = FieldCodec(("tuple[ObjectId, ...]", "tuple[TaskId, ...]"), _as_is, read_ids)
TEXT = FieldCodec(("str",), _as_is, _text)
TEXTS = FieldCodec(("tuple[str, ...]",), list, _read_texts)
COUNT = FieldCodec(("int",), _as_is, _count)
FLAG = FieldCodec(("bool",), int, _flag)
SECONDS = FieldCodec(("float",), _rounded, _seconds)
SECONDS_OR_NULL = FieldCodec(("float | None",), _rounded_or_null, _seconds_or_null)
REFERENCES = FieldCodec(("tuple[Reference, ...]",), _arrays, _refs)
SUMMARY = FieldCodec(("JobSummary",), list, read_summary)
CONTEXT = FieldCodec(("CallerContext | None",), context_fields, read_context)
ATTEMPTS = FieldCodec(("tuple[tuple[TaskId, int], ...]",), _pairs, _read_attempts)
LOSSES = FieldCodec(("tuple[tuple[ObjectId, str], ...]",), _pairs, _read_losses)
NEIGHBOURS = FieldCodec(("tuple[Neighbour, ...]",), _pairs, _read_neighbours)
FAULT = FieldCodec(("TaskFault",), list, _read_fault)
SUCCESSION = FieldCodec(("Succession",), succession_to_json, succession_from_json)
ROLES = FieldCodec(("tuple[ExtentRole, ...]",), _pairs, _read_roles)
EXTENTS = FieldCodec(("tuple[tuple[int, int], ...]",), _pairs, _read_extents)
OFFERED = FieldCodec(("tuple[tuple[int, int, int], ...]",), _pairs, _read_offered)
PLACED = FieldCodec(("tuple[ExtentPlaced, ...]",), _write_placed, _read_placed)
LEVELS = FieldCodec(("tuple[dict[str, Any], ...]",), list, _read_levels)
DISKS = FieldCodec(("tuple[DiskLimit, ...]",), _pairs, _read_disks)
FIGURES = FieldCodec(("dict[str, int]",), _as_is, _read_figures)

_PLAIN: dict[type, tuple[str, tuple[FieldCodec, ...]]] = {
    WantObjects: ("want", (ID, IDS)),
    ReleaseObjects: ("release", (ID, IDS, FLAG, REFERENCES)),
    ReplicateObjects: ("replicate", (ID, COUNT, REFERENCES)),
    CloseJob: ("close", (ID,)),
    CancelJob: ("cancel_job", (ID, TEXT)),
    WatchJob: ("watch", (ID, FLAG)),
    JobChanged: ("job_changed", (SUMMARY,)),
    RequestRefused: ("request_refused", (ID, TEXT)),
    DescribeJob: ("describe", (ID, CONTEXT)),
    CancelTask: ("cancel_task", (ID, COUNT, FLAG)),
    RecallTasks: ("recall", (ATTEMPTS,)),
    DropObjects: ("drop", (IDS, FLAG)),
    MeetWorkers: ("meet", (NEIGHBOURS, TEXTS, FLAG)),
    StreamsOpened: ("streams", (ID, COUNT, REFERENCES)),
    InputsLost: ("lost", (ID, COUNT, LOSSES, TEXT, FLAG)),
    DiskQueued: ("disk", (COUNT, SECONDS)),
    CopyTimed: ("copied", (TEXT, COUNT, SECONDS)),
    WorkersUnreached: ("unreached", (TEXTS,)),
    CopyObjects: ("copy", (REFERENCES,)),
    NotCopied: ("not_copied", (ID, TEXTS, TEXT, FLAG)),
    CompareObjects: ("compare", (REFERENCES,)),
    ContentDiffers: ("differs", (ID,)),
    StateSet: ("state", (ID, TEXT, COUNT, COUNT, ID, COUNT, COUNT)),
    StateChanged: ("state_changed", (ID, TEXT, COUNT, COUNT)),
    DrainWorker: ("drain", (SECONDS_OR_NULL,)),
    DismissWorker: ("dismiss", ()),
    StoresReported: ("stores", (LEVELS, COUNT, FLAG, DISKS)),
    ServiceOpened: ("service_opened", (ID, COUNT, TEXT)),
    StartOver: ("start_over", ()),
    AttemptsKept: ("kept", (ATTEMPTS, IDS, IDS)),
    StoreListed: ("listed", ()),
    MastersNamed: ("masters", (TEXTS,)),
    JournalCopyEnds: ("journal_copy_ends", (COUNT,)),
    JournalStored: ("journal_stored", (COUNT,)),
    MasterStarted: ("master_started", (COUNT, TEXT)),
    SuccessionChanged: ("succession", (SUCCESSION, FLAG)),
    JobNoted: ("job_noted", (ID, SECONDS, TEXT)),
    WorkerSeen: ("worker_seen", (TEXT, TEXT)),
    WorkerLeft: ("worker_left", (TEXT,)),
    AttemptFailed: ("attempt_failed", (ID, COUNT, TEXT, FAULT, FLAG)),
    VolumeCreated: ("volume", (COUNT, TEXT, COUNT, COUNT, TEXT, TEXT)),
    VolumeRemoved: ("volume_removed", (COUNT,)),
    MemoryServerSeen: ("memory_seen", (TEXT, COUNT, TEXT, COUNT, FLAG)),
    MemoryServerLeft: ("memory_left", (COUNT,)),
    ExtentsPlaced: ("placed", (COUNT, PLACED)),
    JournalCompacted: ("compacted", (COUNT,)),
    ExtentsOffered: ("offered", (OFFERED,)),
    LeaseAsked: ("lease_asked", (COUNT,)),
    RolesTaken: ("roles_taken", (COUNT,)),
    ExtentSynced: ("synced", (COUNT, COUNT, COUNT, COUNT)),
    PeerServerLost: ("peer_lost", (COUNT,)),
    MemoryReported: ("memory_report", (FIGURES,)),
    OfferChanged: ("offer", (COUNT, FLAG)),
    LeaseGranted: ("lease", (COUNT, COUNT)),
    AllowToken: ("allow", (TEXT,)),
    ConnectServer: ("connect", (COUNT, TEXT, TEXT)),
    TakeRoles: ("roles", (COUNT, ROLES)),
    KeepExtents: ("keep", (EXTENTS,)),
    DismissServer: ("dismiss_server", ()),
    Received: ("received", (COUNT,)),
    Heartbeat: ("alive", ()),
}
"""Messages whose form follows from their type: the kind, and the codec of each field in order. A
test compares the codecs with the annotations of the fields."""


def _plain_form(message: type, kind: str, codecs: tuple[FieldCodec, ...]) -> Form:
    """Return the form of a message without a payload: one field of a record per field."""
    writers = [field.write for field in codecs]
    readers = [(index, field.read) for index, field in enumerate(codecs)]

    def write(m: Any) -> tuple[Fields, bytes]:
        return [write_field(value) for write_field, value in zip(writers, m, strict=True)], b""

    def read(f: Fields, payload: bytes) -> Any:
        return message(*[read_field(f[index]) for index, read_field in readers])

    return Form(kind, write, read)


_SPECIAL: dict[type, Form] = {
    SubmitJob: Form(
        "job", lambda m: (job_fields(m.spec), b""), lambda f, p: SubmitJob(read_job(f))
    ),
    AddTask: Form(
        "task",
        lambda m: ([*task_fields(m.spec), _arrays(m.known)], m.spec.payload),
        lambda f, p: AddTask(read_task(f[:N], p), _refs(f[N])),
    ),
    Ask: Form("ask", lambda m: ([m.number, m.topic], codec.encode(m.argument)), _read_ask),
    Change: Form("change", lambda m: ([m.number, m.topic], codec.encode(m.argument)), _read_change),
    ObjectSettled: Form(
        "settled",
        lambda m: ([m.job, to_array(m.ref)], b""),
        lambda f, p: ObjectSettled(_id(f[0]), from_array(f[1])),
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
            _printed(p),
            bool(_count(f[7]) & 1),
            bool(f[7] & 2),
        ),
    ),
    Answer: Form("answer", lambda m: ([m.number, m.error], codec.encode(m.value)), _read_answer),
    AssignTask: Form(
        "assign",
        _write_assignment,
        lambda f, p: AssignTask(
            read_task(f[:N], p), _count(f[N]), _refs(f[N + 1]), _counts(f[N + 2 :])
        ),
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
    ObjectsStored: Form(
        "stored",
        lambda m: ([_arrays(m.refs), m.kept + 2 * m.idle], b""),
        lambda f, p: ObjectsStored(_refs(f[0]), bool(_count(f[1]) & 1), bool(f[1] & 2)),
    ),
    JournalCopied: Form(
        "journal_copied", lambda m: ([], m.content), lambda f, p: JournalCopied(bytes(p))
    ),
    JournalGrew: Form(
        "journal_grew",
        lambda m: ([m.number, int(m.is_last_part)], m.content),
        lambda f, p: JournalGrew(_count(f[0]), _flag(f[1]), bytes(p)),
    ),
    TaskPrinted: Form(
        "prints",
        lambda m: ([*m[:-3], int(m.is_stderr) | m.is_notice << 1], m.text.encode()),
        lambda f, p: TaskPrinted(
            _id(f[0]),
            _count(f[1]),
            _count(f[2]),
            _count(f[3]),
            _printed(p),
            bool(_count(f[4]) & 1),
            bool(f[4] & 2),
        ),
    ),
}
"""Messages with forms of their own: with a payload or a task, with several flags in one number, or
so frequent that the general form would cost too much time (`report`, `settled`)."""

_FORMS: dict[type, Form] = _SPECIAL | {
    message: _plain_form(message, kind, codecs) for message, (kind, codecs) in _PLAIN.items()
}
_BY_KIND: dict[str, tuple[type, Callable[[Fields, bytes], Any]]] = {
    form.kind: (message, form.read) for message, form in _FORMS.items()
}

FROM_CLIENT: frozenset[type] = frozenset(get_args(FromClient))
FROM_SERVICE: frozenset[type] = frozenset(get_args(FromService))
TO_CLIENT: frozenset[type] = frozenset(get_args(ToClient))
FROM_WORKER: frozenset[type] = frozenset(get_args(FromWorker))
TO_WORKER: frozenset[type] = frozenset(get_args(ToWorker))
FROM_STANDBY: frozenset[type] = frozenset(get_args(FromStandby))
TO_STANDBY: frozenset[type] = frozenset(get_args(ToStandby))
FROM_MEMORY: frozenset[type] = frozenset(get_args(FromMemory))
TO_MEMORY: frozenset[type] = frozenset(get_args(ToMemory))
IN_JOURNAL: frozenset[type] = frozenset(get_args(InJournal))


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
