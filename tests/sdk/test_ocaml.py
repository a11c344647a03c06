"""Tests which calls the SDK for OCaml makes, against a stand-in for the worker (CIB-5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from ciel.testing.stand_in import StandIn, opened
from ciel_tests.installed.languages import build_ocaml

STEPS: Final = """
open Ciel

let run task =
  match elements (member "proc_pargs" task) with
  | [ String "arguments"; value ] -> ignore (publish 0 (print value))
  | [ String "spawn"; ref ] ->
      let made = spawn "sync" [ ("slots", Number "2"); ("args", Object [ ("inputs", ref) ]) ] in
      tail_spawn "proc" [ ("command", String "x"); ("proc_pargs", made) ]
  | [ String "wait"; ref ] ->
      let text = contents ref in
      log (text ^ print (package "key"))
  | [ String "stream"; ref ] ->
      let copy out =
        try read_stream ~chunk:4 ref (output_string out) with Failure why -> output_string out why
      in
      ignore (write ~may_stream:true (allocate "copy") copy)
  | _ -> ignore (write 0 (fun _ -> failwith "no such step"))

let () = serve run
"""
FUTURE: Final = {"__ref__": ["f2", "a"]}
WARM: Final = ("exit", {"keep_process": "may_keep"})

pytestmark = pytest.mark.requirement("CIB-5")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ocaml")
    (path / "source").mkdir()
    (path / "source" / "steps.ml").write_text(STEPS)
    return str(build_ocaml(path / "source" / "steps.ml", path))


@pytest.fixture
def program(programs: Callable[..., StandIn], steps: str) -> StandIn:
    return programs(steps)


def test_one_process_runs_several_tasks(program: StandIn, tmp_path: Path) -> None:
    for value in ('[1,-2.5e3,null,true,{"a":"ü\\n\\"\\\\"}]', "{}"):
        program.say("start_task", {"proc_pargs": ["arguments", json.loads(value)]})
        program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
        assert program.answer("close_output", {"ref": FUTURE}) == {"index": 0}
        assert json.loads((tmp_path / "out").read_text()) == json.loads(value)
        assert program.hear() == WARM
    program.say("die", {"reason": "Garbage collected"})
    assert program.silence()
    assert (program.status(), program.errors()) == (0, "")


def test_children_have_the_keywords_of_their_spawn(program: StandIn) -> None:
    program.start_task("spawn", [FUTURE])
    sync = {"executor_name": "sync", "slots": 2, "args": {"inputs": [FUTURE]}}
    assert program.answer("spawn", [FUTURE]) == sync
    successor = {"executor_name": "proc", "command": "x", "proc_pargs": [FUTURE]}
    assert program.hear() == ("tail_spawn", successor)
    assert program.hear() == WARM


def test_a_task_waits_in_place_for_an_object(program: StandIn, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    program.start_task("wait", FUTURE)
    assert program.answer("open_ref", {"error": "EWOULDBLOCK"}) == {"ref": FUTURE}
    waiting = {"executor_name": "proc", "extra_dependencies": [FUTURE], "is_fixed": True}
    assert program.hear() == ("tail_spawn", waiting)
    assert program.hear() == ("exit", {"keep_process": "must_keep"})
    program.start_task()
    program.answer("open_ref", {"filename": str(tmp_path / "text")})
    assert program.answer("package_lookup", {"value": None}) == {"key": "key"}
    assert program.hear() == ("log", {"message": "textnull"})
    assert program.hear() == WARM


@pytest.mark.parametrize(
    "piece, reply, copied",
    [
        (b"three", {"size": 11, "done": True, "success": True}, b"onetwothree"),
        (b"", {"success": False}, b"onetwoa broke off after 6 bytes"),
        (b"", {"size": 9, "done": True, "success": True}, b"onetwoa ended after 6 of 9 bytes"),
    ],
    ids=["complete", "broken", "short"],
)
def test_a_growing_object_is_copied(
    program: StandIn, tmp_path: Path, piece: bytes, reply: dict[str, Any], copied: bytes
) -> None:
    growing = tmp_path / "growing"
    growing.write_bytes(b"one")
    program.start_task("stream", FUTURE)
    assert program.answer("allocate_output", {"index": 1}) == {"prefix": "copy"}
    filename = {"sending_fd": False, "filename": str(tmp_path / "out")}
    assert program.answer("open_output", filename) == {"index": 1, "may_stream": True}
    asked = {"ref": FUTURE, "chunk_size": 4}
    assert program.answer("open_ref_async", opened(growing)) == asked
    for size, more, told in (
        (3, b"two", {"size": 6, "done": False, "success": True}),
        (6, piece, reply),
    ):
        assert program.answer("wait_stream") == {"id": "a", "bytes": size + 4}
        with growing.open("ab") as out:
            out.write(more)
        program.say("wait_stream", told)
    assert program.hear() == ("close_stream", {"id": "a", "chunk_size": 4})
    assert program.answer("close_output", {"ref": FUTURE}) == {"index": 1}
    assert (tmp_path / "out").read_bytes() == copied
    assert program.hear() == WARM


def test_an_exception_is_an_error_and_takes_the_output_back(
    program: StandIn, tmp_path: Path
) -> None:
    program.start_task("other")
    program.answer("open_output", {"sending_fd": False, "filename": str(tmp_path / "out")})
    assert program.answer("rollback_output", {"ref": None}) == {"index": 0}
    method, args = program.hear()
    assert method == "error"
    assert args["report"].startswith('Failure("no such step")\nRaised at ')
    assert program.status() == 1
    assert program.silence()
