"""The conversation of `proc` (§1): what programs get wrong, children, and the end."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import JobId, ObjectId
from ciel.core.refs import (
    Concrete,
    Fixed,
    Future,
    Reference,
    Tombstone,
    Value,
)
from ciel.core.tasks import Needs
from ciel.execution.conversation import Over
from ciel.execution.executor import Talk, Task
from ciel.executors.proc import ProcExecutor
from ciel.storage.files import FileStore
from ciel.testing.builders import JOB, inline
from ciel.wire.descriptors import make_task, read_arguments
from ciel_tests.scenes.dialogues import BAD_KEYS, HERE, MAY_KEEP, NO, TEXT, Begin, Dialogue, future

# --- what programs get wrong ----------------------------------------------------------------------

WRONG: list[tuple[str, Any, str]] = [
    ("open_ref", {}, "its call of 'open_ref' lacks 'ref'"),
    ("open_ref_async", {"chunk_size": 1}, "lacks 'ref'"),
    ("open_ref_async", {"ref": future("x")}, "lacks 'chunk_size'"),
    ("wait_stream", {"bytes": 1}, "lacks 'id'"),
    ("wait_stream", {"id": "x"}, "lacks 'bytes'"),
    ("close_stream", {"chunk_size": 1}, "lacks 'id'"),
    ("spawn", {"command": "x"}, "lacks 'executor_name'"),
    ("tail_spawn", {"command": "x"}, "lacks 'executor_name'"),
    ("publish_string", {"str": TEXT}, "lacks 'index'"),
    ("publish_string", {"index": 0}, "lacks 'str'"),
    ("advert", {"index": 0}, "lacks 'size'"),
    ("advert", {"size": 0}, "lacks 'index'"),
    ("package_lookup", {}, "lacks 'key'"),
    ("log", {}, "lacks 'message'"),
    ("error", {}, "lacks 'report'"),
    ("exit", {}, "lacks 'keep_process'"),
    ("no_such_method", {}, "'no_such_method', which is not a method of this protocol"),
    ("subscribe", {"index": 0}, "not a method"),
    ("start_task", {}, "not a method"),
    ("block", {}, "not a method"),
    ("exit", "no", "the arguments of its 'exit' are not an object"),
    ("exit", None, "are not an object"),
    ("exit", [], "are not an object"),
    ("open_ref", {"ref": "x"}, "'ref' is not a reference"),
    ("open_ref", {"ref": ["f2", "x"]}, "'ref' is not a reference"),
    ("open_ref", {"ref": None}, "'ref' is not a reference"),
    ("open_ref_async", {"ref": future("x"), "chunk_size": "1"}, "'chunk_size' must be a number"),
    ("open_ref_async", {"ref": future("x"), "chunk_size": -1}, "'chunk_size' must be a number"),
    ("open_ref_async", {"ref": future("x"), "chunk_size": True}, "'chunk_size' must be a number"),
    ("open_ref_async", {"ref": inline("x"), "chunk_size": 1, "fd_socket_name": 5}, "be a string"),
    ("wait_stream", {"id": "x", "bytes": 1}, "not open as a stream"),
    *[("wait_stream", {"id": key, "bytes": 1}, "'id' must be a string") for key in BAD_KEYS],
    *[("close_stream", {"id": key}, "'id' must be a string") for key in BAD_KEYS],
    *[("package_lookup", {"key": key}, "'key' must be a string") for key in BAD_KEYS],
    *[("spawn", {"executor_name": key}, "'executor_name' must be a string") for key in BAD_KEYS],
    ("wait_stream", {"id": "x", "bytes": 1.5}, "'bytes' must be a number"),
    ("allocate_output", {"prefix": 1}, "'prefix' must be a string"),
    ("allocate_output", {"prefix": "a b"}, "'prefix' does not give a valid"),
    ("publish_string", {"index": 1, "str": TEXT}, "no output 1; the only output of the task is 0"),
    ("publish_string", {"index": -1, "str": TEXT}, "no output -1"),
    ("publish_string", {"index": "0", "str": TEXT}, "'index' must be the number of an output"),
    ("publish_string", {"index": 0.0, "str": TEXT}, "'index' must be the number of an output"),
    ("publish_string", {"index": 0, "str": "a$b="}, "'str' is not base64"),
    ("publish_string", {"index": 0, "str": "abc"}, "'str' is not base64"),
    ("publish_string", {"index": 0, "str": "dé=="}, "'str' is not base64"),
    ("publish_string", {"index": 0, "str": 5}, "'str' is not base64"),
    ("open_output", {"index": 1}, "no output 1"),
    ("open_output", {"may_pipe": True}, "'may_pipe' needs 'may_stream'"),
    ("close_output", {}, "output 0 is not open"),
    ("close_output", {"size": "5"}, "'size' must be a number of bytes"),
    ("rollback_output", {"index": 0}, "output 0 is not open"),
    ("advert", {"index": 0, "size": -1}, "'size' must be a number of bytes"),
    ("spawn", {"executor_name": "cobol"}, "there is no executor 'cobol' (there are: env, "),
    ("tail_spawn", {"executor_name": "cobol", "is_fixed": True}, "there is no executor 'cobol'"),
    ("tail_spawn", {"executor_name": "sync", "is_fixed": True},
     "'sync' has no interactive programs"),
    ("tail_spawn", {"executor_name": "proc", "is_fixed": True, "extra_dependencies": ["x"]},
     "'extra_dependencies' must be a list of references"),
    ("spawn", {"executor_name": "proc"}, "'command' must name a program"),
    ("spawn", {"executor_name": "proc", "command": "x", "n_extra_outputs": -1}, "0 to 10000"),
    ("spawn", {"executor_name": "proc", "command": "x", "force_n_outputs": -1}, "0 to 10000"),
    ("spawn", {"executor_name": "proc", "command": "x", "force_n_outputs": 10_001}, "0 to 10000"),
    ("spawn", {"executor_name": "proc", "command": "x", "extra_dependencies": 5}, "references"),
    ("spawn", {"executor_name": "proc", "command": "x", "any_dependencies": [1]},
     "'any_dependencies' must be a list of references"),
    ("tail_spawn",
     {"executor_name": "proc", "is_fixed": True, "extra_dependencies": [Future(ObjectId("x"))],
      "any_dependencies": [Future(ObjectId("x"))]},
     "x is in 'extra_dependencies' and in 'any_dependencies'"),
    ("spawn", {"executor_name": "stdinout", "args": []}, "an object 'args'"),
    ("spawn", {"executor_name": "proc", "command": "x", "slots": "1"},
     "'slots' must be a whole number, not '1'"),
    ("spawn", {"executor_name": "proc", "command": "x", "retries": 1.5},
     "'retries' must be a whole number, not 1.5"),
    ("spawn", {"executor_name": "proc", "command": "x", "timeout_s": "1"},
     "'timeout_s' must be a number of seconds, not '1'"),
    ("spawn", {"executor_name": "proc", "command": "x", "slots": 0}, "slots must be 1 to 1024"),
    ("spawn", {"executor_name": "proc", "command": "x", "slots": -5}, "slots must be 1 to 1024"),
    ("spawn", {"executor_name": "proc", "command": "x", "timeout_s": -1}, "timeout_s must be"),
    ("spawn", {"executor_name": "proc", "command": "x", "retries": True}, "'retries' must be"),
    ("spawn", {"executor_name": "proc", "command": "x", "retry_on": "A"}, "be a list of strings"),
    ("spawn", {"executor_name": "proc", "command": "x", "retry_on": ["CANCELLED"]}, "cannot fix"),
    ("spawn", {"executor_name": "proc", "command": "x", "retry_delay_s": -1}, "retry_delay_s must"),
    ("spawn", {"executor_name": "proc", "command": "x", "delay_s": -0.1}, "delay_s must be 0 to"),
    ("tail_spawn", {"executor_name": "proc", "command": "x", "proc_pargs": [future("out")]},
     "one of its outputs is also its input"),
    ("exit", {"keep_process": "maybe"}, "no, may_keep or must_keep, not 'maybe'"),
    ("exit", {"keep_process": None}, "no, may_keep or must_keep"),
    ("exit", {"keep_process": []}, "no, may_keep or must_keep"),
    ("exit", {"keep_process": "must_keep"}, "'must_keep' needs a 'tail_spawn' with 'is_fixed'"),
    ("exit", {**MAY_KEEP, "soft_cache_keys": 5}, "'soft_cache_keys' must be a list"),
    ("exit", {**MAY_KEEP, "soft_cache_keys": [["x"]]}, "'soft_cache_keys' must be a list"),
    ("exit", {**MAY_KEEP, "soft_cache_keys": [[5, "tag"]]}, "'soft_cache_keys' must be a list"),
]  # fmt: skip


@pytest.mark.parametrize(
    "method, args, text", WRONG, ids=[f"{n}-{method}" for n, (method, _, _) in enumerate(WRONG)]
)
def test_what_a_program_gets_wrong_ends_its_task_with_a_reason(
    talk: Begin, method: str, args: Any, text: str
) -> None:
    one = talk()
    assert one.calls((method, args)) == []
    assert text in one.fault()
    assert method in one.fault()


def test_each_output_is_made_once(talk: Begin) -> None:
    twice: list[list[tuple[str, dict[str, Any]]]] = [
        [("publish_string", {"index": 0, "str": TEXT})] * 2,
        [("open_output", {"index": 0})] * 2,
        [("open_output", {}), ("publish_string", {"index": 0, "str": TEXT})],
        [("publish_string", {"index": 0, "str": TEXT}), ("open_output", {})],
        [("open_output", {}), ("close_output", {}), ("close_output", {})],
        [("open_output", {}), ("rollback_output", {}), ("close_output", {})],
    ]
    for calls in twice:
        one = talk()
        assert len(one.calls(*calls)) == len(calls) - 1
        assert "output 0" in one.fault()
        one.attempt.outputs.roll_back_all()


def test_what_was_said_to_be_written_must_be_there(talk: Begin) -> None:
    one = talk()
    Path(one.call("open_output")["filename"]).write_bytes(b"12")
    assert "has 2 bytes, but the program reported 3" in one.wrong("close_output", size=3)


def test_nothing_is_answered_after_a_fault(talk: Begin) -> None:
    one = talk()
    assert one.calls(("nonsense", {}), ("allocate_output", {}), ("exit", NO)) == []
    assert "'nonsense'" in one.fault()


def test_a_name_that_is_long_is_not_repeated_at_length(talk: Begin) -> None:
    one = talk()
    assert one.calls(("x" * 10_000, {})) == []
    assert len(one.fault()) < 200


# --- children -------------------------------------------------------------------------------------


def test_a_child_of_proc_is_a_bare_reference_and_others_are_a_list(talk: Begin) -> None:
    one = talk()

    def outputs(count: int, **keywords: Any) -> list[Future]:
        child = one.attempt.children[-1].spec
        assert len(child.outputs) == count
        return [Future(object_id) for object_id in child.outputs]

    spawn = {"executor_name": "proc", "command": "x"}
    assert [one.call("spawn", **spawn)] == outputs(1)
    assert [one.call("spawn", **spawn, force_n_outputs=1)] == outputs(1)
    assert one.call("spawn", **spawn, n_extra_outputs=1) == outputs(2)
    assert one.call("spawn", **spawn, force_n_outputs=3, n_extra_outputs=7) == outputs(3)
    count = len(one.attempt.children)
    assert one.call("spawn", **spawn, force_n_outputs=0) == []
    assert len(one.attempt.children) == count
    for executor in ("stdinout", "env", "sync"):
        args = {"command_line": ["x"], "inputs": []}
        assert one.call("spawn", executor_name=executor, args=args) == outputs(1)
        assert one.call("spawn", executor_name=executor, args=args, n_outputs=1) == outputs(1)


@pytest.mark.parametrize("key", ["small_task", "scheduling_class", "scheduling_type"])
def test_hints_of_a_spawn_change_nothing(talk: Begin, key: str) -> None:
    with_hint, without = talk(), talk()
    spawn = {"executor_name": "proc", "command": "x"}
    assert with_hint.call("spawn", **spawn, **{key: True}) == without.call("spawn", **spawn)
    assert with_hint.attempt.children == without.attempt.children


def test_what_a_child_needs_is_asked_for_beside_its_arguments(talk: Begin) -> None:
    one = talk()
    needs = {
        "slots": 2, "memory_bytes": 1 << 20, "priority": -1, "timeout_s": 1.5, "retries": 3,
        "retry_on": ["TIMED_OUT"], "retry_delay_s": 2.5, "delay_s": 0.5, "where": "zone=b",
        "resources": {"licence/x": 1, "gpu": "0.25"},
    }  # fmt: skip
    one.call("spawn", executor_name="proc", command="x", **needs)
    spec = one.attempt.children[0].spec
    as_read = {"retry_on": ("TIMED_OUT",), "resources": (("gpu", 2500), ("licence/x", 10_000))}
    assert spec.needs == Needs(**needs | as_read)  # type: ignore[arg-type]  # the values are of these types
    assert read_arguments(spec.payload) == {"command": "x"}


def test_a_childs_arguments_arrive_as_they_were_given(talk: Begin) -> None:
    one = talk(inline("x", b"content"))
    pargs = [1, {"a": [None, future("y")]}, inline("x", b"content")]
    one.call(
        "spawn", executor_name="proc", command=["c", "-v"], proc_pargs=pargs, proc_kwargs={"k": 1},
        extra_dependencies=[future("z")], other="left out",
    )  # fmt: skip
    child = one.attempt.children[0]
    assert read_arguments(child.spec.payload) == {
        "command": ["c", "-v"], "proc_pargs": pargs, "proc_kwargs": {"k": 1},
        "extra_dependencies": [future("z")],
    }  # fmt: skip
    assert sorted(child.spec.inputs) == ["x", "y", "z"]
    assert child.known == (inline("x", b"content"),)


def test_what_was_published_since_is_known_of_a_childs_arguments(talk: Begin) -> None:
    one = talk()
    index = one.call("allocate_output", prefix="part")["index"]
    made = one.call("publish_string", index=index, str=b64encode(b"x" * 5000).decode())["ref"]
    one.call("spawn", executor_name="proc", command="x", proc_pargs=[[future(made.id)]])
    assert one.attempt.children[0].known == (made,)


def test_children_are_named_by_their_order_and_arguments_alone(talk: Begin) -> None:
    def spawn(*commands: str) -> list[Any]:
        one = talk()
        return [one.call("spawn", executor_name="proc", command=c) for c in commands]

    first, second, third = spawn("a", "a", "b")
    assert spawn("a", "a", "b") == [first, second, third]
    assert len({first, second, third}) == 3
    assert spawn("b", "a")[1] == second
    assert spawn("b")[0] != third


def test_simple_tasks_with_the_same_arguments_are_done_once(talk: Begin) -> None:
    one = talk()
    args = {"command_line": ["date"], "inputs": []}
    first = one.call("spawn", executor_name="stdinout", args=args)
    assert one.call("spawn", executor_name="stdinout", args=args) == first


def test_a_tail_spawned_task_makes_the_outputs_of_its_parent(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    one.call("allocate_output")
    one.silent("tail_spawn", executor_name="proc", command="x", force_n_outputs=1)
    assert one.attempt.children[0].spec.outputs == ("a", "b")
    one.silent("exit", keep_process="no")
    assert one.over == Over(None)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_outputs_are_handed_over_once(talk: Begin, first: bool, second: bool) -> None:
    one = talk()
    one.silent("tail_spawn", executor_name="proc", command="x", is_fixed=first)
    assert "already" in one.wrong("tail_spawn", executor_name="proc", command="y", is_fixed=second)


def test_a_child_looks_things_up_in_the_same_package(talk: Begin) -> None:
    package = inline("package", b"{}")
    one = talk(package, package_ref=package)
    one.call("spawn", executor_name="proc", command="x")
    one.call("spawn", executor_name="sync", args={"inputs": []})
    arguments = [read_arguments(child.spec.payload) for child in one.attempt.children]
    assert arguments == [{"command": "x", "package_ref": package}, {"args": {"inputs": []}}]


# --- packages -------------------------------------------------------------------------------------


def test_a_package_is_looked_up(talk: Begin) -> None:
    entries = {"a": {"__ref__": ["val", "entry", TEXT]}, "b": {"__ref__": ["c2", "e2", 5, [HERE]]}}
    package = inline("package", json.dumps(entries).encode())
    one = talk(package, package_ref=future("package"))
    found = one.call("package_lookup", key="a")
    assert found == {"value": Value(ObjectId("entry"), TEXT)}
    found = one.call("package_lookup", key="b")
    assert found == {"value": Concrete(ObjectId("e2"), 5, frozenset((HERE,)))}
    assert one.call("package_lookup", key="absent") == {"value": None}


def test_without_a_package_nothing_is_found(talk: Begin) -> None:
    one = talk()
    assert one.call("package_lookup", key="a") == {"value": None}


@pytest.mark.parametrize("content", [b"garbage", b'{"a": {"__ref__": ["f2", ""]}}'])
def test_a_package_that_cannot_be_read_ends_who_asks(talk: Begin, content: bytes) -> None:
    package = inline("package", content)
    one = talk(package, package_ref=package)
    assert "package of its job cannot be read" in one.wrong("package_lookup", key="a")


# --- the end --------------------------------------------------------------------------------------


def test_an_exit_says_what_the_program_is_ready_for(talk: Begin) -> None:
    one = talk()
    one.silent(
        "exit", keep_process="may_keep", soft_cache_keys=[[["a", "b"], "parsed"], [["c"], 1]]
    )
    assert one.over == Over(None, "may_keep", (frozenset(("a", "b")), frozenset("c")))


def test_a_program_that_waits_in_place_is_kept(talk: Begin) -> None:
    one = talk(outputs=("a", "b"))
    dependencies = [future("x"), future("y")]
    one.silent("tail_spawn", executor_name="proc", is_fixed=True, extra_dependencies=dependencies)
    one.silent("exit", keep_process="must_keep")
    assert one.over == Over(None, "must_keep")
    assert one.attempt.fixed is not None
    assert one.attempt.fixed.startswith(f"{one.task_id}:fixed.")
    fixed = Fixed(one.attempt.fixed, HERE)
    assert list(one.attempt.outputs.published.values()) == [fixed]
    (child,) = one.attempt.children
    assert child.spec.outputs == ("a", "b")
    assert child.spec.inputs == (fixed.id, "x", "y")
    assert child.known == (fixed,)
    made = Task(child.spec, read_arguments(child.spec.payload), {}, one.attempt.task.executors)
    action = ProcExecutor().begin(made)
    assert isinstance(action, Talk)
    assert action.fixed == fixed.id


def test_a_child_may_wait_for_any_of_its_inputs(talk: Begin) -> None:
    one = talk()
    choice = [future("x"), future("y")]
    one.call(
        "spawn", executor_name="proc", command="c", proc_pargs=[future("x"), future("z")],
        any_dependencies=choice,
    )  # fmt: skip
    spec = one.attempt.children[0].spec
    assert (spec.needed, spec.alternatives) == (("z",), ("x", "y"))
    assert read_arguments(spec.payload)["any_dependencies"] == choice
    one.silent("tail_spawn", executor_name="proc", is_fixed=True, any_dependencies=choice)
    spec = one.attempt.children[1].spec
    assert (spec.needed, spec.alternatives) == ((one.attempt.fixed,), ("x", "y"))


def test_a_program_goes_on_with_the_needs_it_had(
    store: FileStore, tmp_path: Path, task: Callable[..., Task]
) -> None:
    needs = Needs(slots=2, memory_bytes=1 << 30)
    spec, _ = make_task(
        job=JobId(JOB), parent=JOB, ordinal=0, executor="proc", arguments={}, needs=needs
    )
    one = Dialogue(task({})._replace(spec=spec), store, tmp_path)
    one.silent("tail_spawn", executor_name="proc", is_fixed=True)
    assert one.attempt.children[0].spec.needs == needs


@pytest.mark.parametrize(
    "report, text",
    [
        ("a text\nof two lines", "a text\nof two lines"),
        ({"why": [1, None]}, '{"why":[1,null]}'),
        (None, "null"),
        ({"of": future("x")}, '{"of":{"__ref__":["f2","x"]}}'),
    ],
    ids=["text", "object", "null", "reference"],
)
def test_a_program_reports_its_own_failure(talk: Begin, report: Any, text: str) -> None:
    one = talk()
    assert one.wrong("error", report=report) == text


def test_a_program_that_goes_on_talking_after_its_exit_is_not_kept(talk: Begin) -> None:
    """Its task is done all the same: had it spoken later, nobody would have listened."""
    for end in (NO, MAY_KEEP):
        one = talk()
        assert one.calls(("exit", end), ("log", {"message": "late"})) == []
        assert one.over == Over(None, "no")
        assert one.attempt.logged == []


def test_what_comes_after_an_error_does_not_hide_it(talk: Begin) -> None:
    one = talk()
    assert one.calls(("error", {"report": "the reason"}), ("exit", NO)) == []
    assert one.fault() == "the reason"


def test_a_line_of_the_log_is_text_whatever_it_was(talk: Begin) -> None:
    one = talk()
    for message in ("text", 5, None):
        one.silent("log", message=message)
    assert one.attempt.logged == ["text", "5", "None"]


@pytest.mark.parametrize("ref", [Tombstone(ObjectId("x"), frozenset((HERE,)))], ids=type)
def test_a_reference_that_stands_for_nothing_would_block(talk: Begin, ref: Reference) -> None:
    one = talk()
    assert one.call("open_ref", ref=ref) == {"error": "EWOULDBLOCK"}
