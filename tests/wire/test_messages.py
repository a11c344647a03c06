import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciel import core
from ciel.core.events import (
    AddTask,
    Answer,
    Ask,
    AssignTask,
    AttemptsKept,
    CancelJob,
    CancelTask,
    Change,
    CloseJob,
    CopyTimed,
    DescribeJob,
    DiskLimit,
    DiskQueued,
    DropObjects,
    ExtentPlaced,
    ExtentRole,
    Heartbeat,
    InputsLost,
    JobChanged,
    JobPrinted,
    JournalCopied,
    JournalGrew,
    MeetWorkers,
    Message,
    Neighbour,
    ObjectSettled,
    ObjectsStored,
    RecallTasks,
    Received,
    ReleaseObjects,
    ReplicateObjects,
    RequestRefused,
    ServiceOpened,
    SpawnTask,
    StartOver,
    StateChanged,
    StateSet,
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
from ciel.core.ids import JobId, TaskId
from ciel.core.jobs import CallerContext, JobSpec, JobState, JobSummary
from ciel.core.masters import Succession
from ciel.core.scheduling import DEFAULT_SCHEDULING, read_scheduling
from ciel.core.tasks import Mentions, Needs, TaskState
from ciel.testing.builders import a_task
from ciel.testing.strategies import ids, json_values, places, references
from ciel.wire.codec import decode as decode_json
from ciel.wire.codec import encode as encode_json
from ciel.wire.errors import DecodeError
from ciel.wire.frames import FrameReader, Record, encode_frames
from ciel.wire.messages import (
    _PLAIN,
    _SPECIAL,
    COUNT,
    EXTENTS,
    FAULT,
    FIGURES,
    FLAG,
    FROM_CLIENT,
    FROM_MEMORY,
    FROM_SERVICE,
    FROM_STANDBY,
    FROM_WORKER,
    ID,
    IN_JOURNAL,
    OFFERED,
    PLACED,
    REFERENCES,
    ROLES,
    SECONDS,
    SECONDS_OR_NULL,
    SUCCESSION,
    TEXT,
    TEXTS,
    TO_CLIENT,
    TO_MEMORY,
    TO_STANDBY,
    TO_WORKER,
    FieldCodec,
    decode,
    encode,
    kind_of,
)

EVERYTHING = (
    FROM_CLIENT
    | FROM_SERVICE
    | FROM_WORKER
    | FROM_STANDBY
    | FROM_MEMORY
    | TO_CLIENT
    | TO_WORKER
    | TO_STANDBY
    | TO_MEMORY
    | IN_JOURNAL
)

SCHEDULED = (
    DEFAULT_SCHEDULING,
    read_scheduling("tworandom"),
    read_scheduling("locality", {"equally_local_margin": 0.9}),
)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
flags, counts = st.booleans(), st.integers(0, 2**40)
jobs, tasks = ids().map(JobId), ids().map(TaskId)
several_ids = st.lists(ids(), max_size=3, unique=True).map(tuple)
refs = st.lists(references(), max_size=3).map(tuple)
seconds = st.integers(0, 10**9).map(lambda micros: micros / 1_000_000)
specs = st.builds(
    lambda task, outputs, inputs, needs, sees_errors, mentions, name, payload: task._replace(
        outputs=outputs, inputs=inputs, needs=needs, sees_errors=sees_errors, mentions=mentions,
        name=name, payload=payload, any_count=len(name) % (len(inputs) + 1),
    ),
    st.sampled_from([a_task("a"), a_task("b", parent=a_task("a"), ordinal=7)]),
    st.lists(ids(), min_size=1, max_size=3, unique=True).map(tuple),
    several_ids,
    st.builds(
        Needs, st.integers(1, 9), counts, st.integers(-9, 9), seconds, st.integers(0, 9),
        st.lists(texts, max_size=2).map(tuple), seconds, seconds, seconds, texts,
    ),
    flags,
    st.sampled_from(Mentions),
    texts,
    st.binary(max_size=99),
)  # fmt: skip
summaries = st.builds(
    JobSummary, jobs, counts, texts, st.sampled_from(JobState).map(str), texts,
    st.dictionaries(st.sampled_from(TaskState).map(str), counts), seconds, st.none() | seconds,
    counts, counts, counts,
)  # fmt: skip
variables = st.text(st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1, max_size=9)
contexts = st.none() | st.builds(
    CallerContext, st.sampled_from(["", "/", "/fünf"]),
    st.dictionaries(variables, variables, max_size=3), flags,
)  # fmt: skip
levels = st.fixed_dictionaries({"name": texts, "used_bytes": counts, "capacity_bytes": st.none()})
messages: dict[type, st.SearchStrategy[Message]] = {
    SubmitJob: st.builds(
        SubmitJob,
        st.builds(JobSpec, jobs, texts, flags, flags, flags, st.sampled_from(SCHEDULED), contexts),
    ),
    AddTask: st.builds(AddTask, specs, refs),
    WantObjects: st.builds(WantObjects, jobs, several_ids),
    ReleaseObjects: st.builds(ReleaseObjects, jobs, several_ids, flags, refs),
    ReplicateObjects: st.builds(ReplicateObjects, jobs, counts, refs),
    CloseJob: st.builds(CloseJob, jobs),
    CancelJob: st.builds(CancelJob, jobs, texts),
    WatchJob: st.builds(WatchJob, jobs, flags),
    Ask: st.builds(Ask, counts, texts, json_values()),
    Change: st.builds(Change, counts, texts, json_values()),
    ObjectSettled: st.builds(ObjectSettled, jobs, references()),
    JobChanged: st.builds(JobChanged, summaries),
    RequestRefused: st.builds(RequestRefused, jobs, texts),
    JobPrinted: st.builds(
        JobPrinted, jobs, tasks, texts, counts, places(), counts, counts, texts, flags
    ),
    Answer: st.builds(Answer, counts, json_values(), texts),
    DescribeJob: st.builds(DescribeJob, jobs, contexts),
    AssignTask: st.builds(AssignTask, specs, counts, refs, st.lists(counts).map(tuple)),
    CancelTask: st.builds(CancelTask, tasks, counts, st.booleans()),
    RecallTasks: st.builds(RecallTasks, st.lists(st.tuples(tasks, counts), max_size=3).map(tuple)),
    DropObjects: st.builds(DropObjects, several_ids, st.booleans()),
    StateSet: st.builds(StateSet, jobs, texts, counts, counts, tasks, counts, counts),
    ServiceOpened: st.builds(ServiceOpened, tasks, counts, texts),
    StateChanged: st.builds(StateChanged, jobs, texts, counts, counts),
    MeetWorkers: st.builds(
        MeetWorkers, st.lists(st.builds(Neighbour, places(), texts), max_size=3).map(tuple)
    ),
    TaskReported: st.builds(
        TaskReported,
        tasks,
        counts,
        refs,
        st.none() | st.builds(TaskFault, texts, texts),
        seconds,
        st.none() | st.integers(-64, 255),
    ),
    SpawnTask: st.builds(SpawnTask, specs, refs, counts, st.booleans()),
    StreamsOpened: st.builds(StreamsOpened, tasks, counts, refs),
    ObjectsStored: st.builds(ObjectsStored, refs, st.booleans()),
    TaskPrinted: st.builds(TaskPrinted, tasks, counts, counts, counts, texts, flags),
    InputsLost: st.builds(
        InputsLost,
        tasks,
        counts,
        st.lists(st.tuples(ids(), places()), max_size=3).map(tuple),
        texts,
    ),
    StoresReported: st.builds(
        StoresReported,
        st.lists(levels, max_size=3).map(tuple),
        counts,
        flags,
        st.lists(st.builds(DiskLimit, texts, texts, counts), max_size=3).map(tuple),
    ),
    Heartbeat: st.just(Heartbeat()),
    Received: st.builds(Received, st.integers(0, 1 << 60)),
}
messages[JournalCopied] = st.builds(JournalCopied, st.binary(max_size=99))
messages[JournalGrew] = st.builds(JournalGrew, counts, flags, st.binary(max_size=99))
successions = st.builds(
    Succession, st.integers(0, 99), st.integers(0, 99),
    st.lists(st.sampled_from(["http://a:1", "http://b:2"]), min_size=1, max_size=3).map(tuple),
    st.dictionaries(st.sampled_from(["w1", "w2"]), places()),
)  # fmt: skip
attempts = st.lists(st.tuples(tasks, counts), max_size=3).map(tuple)
messages[AttemptsKept] = st.builds(AttemptsKept, attempts, several_ids, several_ids)
numbers = st.lists(counts, max_size=3).map(tuple)
placed = st.builds(ExtentPlaced, counts, counts, flags, counts, numbers)
extent_roles = st.builds(ExtentRole, counts, counts, counts, counts, numbers, numbers, numbers)
of_codec: dict[FieldCodec, st.SearchStrategy[Any]] = {
    ID: jobs, TEXT: texts, COUNT: counts, FLAG: st.booleans(), SECONDS: seconds,
    FAULT: st.builds(TaskFault, texts, texts),
    SECONDS_OR_NULL: st.none() | seconds, REFERENCES: refs,
    TEXTS: st.lists(texts, max_size=2).map(tuple), SUCCESSION: successions,
    ROLES: st.lists(extent_roles, max_size=3).map(tuple),
    EXTENTS: st.lists(st.tuples(counts, counts), max_size=3).map(tuple),
    FIGURES: st.dictionaries(texts, counts, max_size=3),
    OFFERED: st.lists(st.tuples(counts, counts, counts), max_size=3).map(tuple),
    PLACED: st.lists(placed, max_size=3).map(tuple),
}  # fmt: skip
for added, (_, codecs_of) in _PLAIN.items():
    if added not in messages and all(field in of_codec for field in codecs_of):
        messages[added] = st.builds(added, *[of_codec[field] for field in codecs_of])
anything = st.one_of(*messages.values())


def through_the_wire(records: list[Record]) -> list[Record]:
    reader = FrameReader()
    reader.feed(encode_frames(records))
    received = reader.next_frame()
    assert received is not None
    assert reader.next_frame() is None
    return received


@pytest.mark.parametrize(
    "record",
    [
        (["prints", "t", 1, 0, 1, 0], b"\xff"),
        (["printed", "j", "t", "", 0, "h:1", 0, 1, 0], b"\xff"),
    ],
)
def test_printed_text_must_be_utf8(record: Record) -> None:
    with pytest.raises(DecodeError, match="printed text must be UTF-8"):
        decode(record, EVERYTHING)


def test_this_file_covers_every_message() -> None:
    assert set(messages) == EVERYTHING


@pytest.mark.parametrize("kind", messages, ids=lambda kind: kind.__name__)
@settings(max_examples=settings().max_examples // 4)  # of each kind
@given(data=st.data())
def test_every_message_survives_a_round_trip(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages[kind])
    [record] = through_the_wire([encode(message)])
    received = decode(record, EVERYTHING)
    assert received == message
    assert type(received) is kind


@given(st.lists(anything, min_size=1, max_size=5))
def test_a_frame_of_messages_arrives_in_order(sent: list[Message]) -> None:
    received = through_the_wire([encode(message) for message in sent])
    assert [decode(record, EVERYTHING) for record in received] == sent


def examples() -> list[tuple[Any, bytes]]:
    """Return one record of each kind, as it arrives."""
    spec = a_task("a", inputs=["b"])
    listed: list[Message] = [
        SubmitJob(JobSpec(JobId("job"), "", True, False, False)),
        AddTask(spec, ()),
        WantObjects(JobId("job"), spec.outputs),
        ReleaseObjects(JobId("job"), spec.outputs),
        CloseJob(JobId("job")),
        CancelJob(JobId("job"), "why"),
        WatchJob(JobId("job")),
        Ask(1, "jobs", {"limit": 3}),
        JobChanged(JobSummary(JobId("job"), 1, "", "active", "", {}, 0.0, None, 0, 0, 0)),
        RequestRefused(JobId("job"), "why"),
        JobPrinted(JobId("job"), spec.id, "f", 1, "w1:8001", 0, 10, "a line\n"),
        Answer(1, [], ""),
        DescribeJob(JobId("job"), CallerContext("/somewhere", {"LANG": "C"})),
        AssignTask(spec, 1, ()),
        CancelTask(spec.id, 1),
        DropObjects(spec.outputs),
        MeetWorkers((Neighbour("w1:8001", "host"),)),
        TaskReported(spec.id, 1, (), TaskFault("RUNTIME_ERROR", "exit status 3"), 0.5),
        TaskReported(spec.id, 1, (), TaskFault("RAISED", {"text": "no", "error": "e"}), 0.5),
        SpawnTask(spec, (), 1),
        ObjectsStored(()),
        TaskPrinted(spec.id, 1, 0, 10, "a line\n"),
        InputsLost(spec.id, 1, ((spec.outputs[0], "w1:8001"),), "gone"),
        DiskQueued(1 << 30, 10.0),
        CopyTimed("w1:8001", 1 << 30, 10.0),
        WorkersUnreached(("w1:8001", "w2:8001")),
        StateSet(JobId("job"), "phase", 2, 1, spec.id, 1, 3),
        ServiceOpened(spec.id, 1, "127.0.0.1:4000"),
        StateChanged(JobId("job"), "phase", 1, 3),
    ]
    return [record for message in listed for record in through_the_wire([encode(message)])]


HOSTILE: list[Any] = [
    None, True, False, -1, 0, 1.5, 10**1000, 1e300, "", "../x", ".", "a\0b", "x" * 300, [],
    ["a", "a"], [None], [[]], [[1, 2]], [["f2"]], {}, {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("record", examples(), ids=lambda record: str(record[0][0]))
def test_a_record_with_a_missing_field_is_refused(record: Record) -> None:
    fields, payload = record
    for length in range(1, len(fields)):
        with pytest.raises(DecodeError, match=f"a record of the kind '{fields[0]}' is malformed"):
            decode((fields[:length], payload), EVERYTHING)


@pytest.mark.parametrize("record", examples(), ids=lambda record: str(record[0][0]))
def test_a_hostile_field_gives_one_clear_error_or_a_valid_message(record: Record) -> None:
    for place in range(1, len(record[0])):
        refused = 0
        for value in HOSTILE:
            fields = [*record[0]]
            fields[place] = value
            refused += is_refused((fields, record[1]))
        assert refused, f"field {place} takes anything"


@given(anything, st.integers(1, 20), json_values())
def test_any_value_in_any_field_gives_one_error_or_a_valid_message(
    message: Message, place: int, value: Any
) -> None:
    [(fields, payload)] = through_the_wire([encode(message)])
    fields[place : place + 1] = [value]
    is_refused((fields, payload))


def is_refused(record: Record) -> bool:
    """Return whether a record is refused; otherwise check that its message survives a round
    trip.
    """
    refusal = ""
    try:
        message = decode(record, EVERYTHING)
    except DecodeError as error:
        refusal = str(error)
    if refusal:
        assert record[0][0] in refusal
        assert len(refusal) <= 300
    else:
        fields, payload = encode(message)
        assert decode((decode_json(encode_json(fields)), payload), EVERYTHING) == message
    return bool(refusal)


@pytest.mark.parametrize("record", examples(), ids=lambda record: str(record[0][0]))
def test_a_message_is_refused_where_it_is_not_expected(record: Record) -> None:
    message = decode(record, EVERYTHING)
    for allowed in (FROM_CLIENT, TO_CLIENT, FROM_WORKER, TO_WORKER):
        if type(message) not in allowed:
            with pytest.raises(DecodeError, match="is not expected here"):
                decode(record, allowed)


@pytest.mark.parametrize("kind", ["", "nonsense", "TASK", "x" * 1000, "hello"])
def test_an_unknown_kind_is_refused(kind: str) -> None:
    with pytest.raises(DecodeError, match="not expected here"):
        decode(([kind], b""), EVERYTHING)


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"NaN", b"[" * 300 + b"]" * 300])
def test_a_payload_that_is_not_json_is_refused_where_json_is_expected(payload: bytes) -> None:
    for fields in (["ask", 1, "jobs"], ["answer", 1, ""]):
        with pytest.raises(DecodeError, match="malformed"):
            decode((fields, payload), EVERYTHING)


def test_each_direction_has_its_own_messages() -> None:
    assert {Change, Received, Heartbeat} == FROM_CLIENT & FROM_WORKER
    assert {Ask, Received, Heartbeat} == FROM_CLIENT & FROM_SERVICE
    assert {Answer, StartOver, Received, Heartbeat} == TO_CLIENT & TO_WORKER
    assert not IN_JOURNAL & (FROM_CLIENT | FROM_WORKER | TO_CLIENT | TO_WORKER)
    assert {Received, Heartbeat} == FROM_WORKER & TO_WORKER
    assert {Heartbeat, Received} == FROM_CLIENT & TO_CLIENT


def declared_fields() -> dict[str, list[str]]:
    """Return the annotations of each message's fields, from the source: in a compiled module they
    lack their arguments.
    """
    tree = ast.parse(Path(core.__file__).with_name("events.py").read_text())
    return {
        item.name: [ast.unparse(f.annotation) for f in item.body if isinstance(f, ast.AnnAssign)]
        for item in tree.body
        if isinstance(item, ast.ClassDef)
    }


def test_the_plain_forms_agree_with_the_types_of_the_fields() -> None:
    declared = declared_fields()
    for message, (kind, codecs) in _PLAIN.items():
        annotations = declared[message.__name__]
        assert len(annotations) == len(codecs), kind
        for annotation, field in zip(annotations, codecs, strict=True):
            assert annotation in field.annotations, f"{kind}: {annotation}"


def test_each_message_has_one_form_and_each_form_a_direction() -> None:
    assert _PLAIN.keys().isdisjoint(_SPECIAL)
    assert _PLAIN.keys() | _SPECIAL.keys() == EVERYTHING


def test_the_protocol_describes_every_message_that_travels() -> None:
    described = Path(__file__).parents[2].joinpath("docs/protocol/control.md").read_text()
    for message in EVERYTHING - IN_JOURNAL:
        assert f"`{kind_of(message)}`" in described
