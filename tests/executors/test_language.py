"""Executors of languages that a few words set up: their programs, and the messages to these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Fixed, Future
from ciel.execution.executor import BadArgumentsError, Executor, Talk, Task
from ciel.executors import sdk
from ciel.executors.language import LanguageExecutor, haskell, ocaml
from ciel.original.skypy import SkypyExecutor
from ciel.testing.builders import inline

X = Future(ObjectId("x"))
MakeTask = Callable[..., Task]


def begun(executor: Executor, task: Task) -> Talk:
    action = executor.begin(task)
    assert isinstance(action, Talk)
    return action


def test_a_program_is_told_all_that_its_task_was_spawned_with(task: MakeTask) -> None:
    julia = LanguageExecutor(name="julia", command=["julia", "task.jl"], env={"A": "b"})
    given = {"args": [1], "fn_ref": inline("fn"), "proc_pargs": [2]}
    form = julia.child_form({**given, "n_outputs": 2, "extra_dependencies": [X], "none": None})
    assert (form.n_outputs, form.memoise, form.as_list) == (2, False, True)
    talk = begun(julia, task(form.arguments, inline("fn")))
    assert (talk.program.argv, talk.program.env) == (("julia", "task.jl"), {"A": "b"})
    assert talk.arguments == {"proc_kwargs": {}, **given}


def test_a_binary_is_split_at_its_spaces(task: MakeTask) -> None:
    talk = begun(ocaml(), task({"binary": " ./closure  -v "}))
    assert talk.program.argv == ("./closure", "-v")
    wrapped = LanguageExecutor(name="r", command=["env", "{binary}", "last"])
    assert begun(wrapped, task({"binary": "a b"})).program.argv == ("env", "a", "b", "last")
    assert begun(ocaml(), task({"binary": "a"})).kind != talk.kind
    for binary in (None, "", "  ", ["a"], "a\0b"):
        with pytest.raises(BadArgumentsError, match="ocaml needs 'binary', a program and its"):
            ocaml().child_form({"binary": binary})


def test_a_process_that_waits_is_gone_on_with(task: MakeTask) -> None:
    fixed = Fixed(ObjectId("fixed"), "w1:8001")
    for executor in (ocaml(), SkypyExecutor()):
        talk = begun(executor, task({"fixed": fixed}))
        assert (talk.fixed, talk.arguments["id"]) == ("fixed", "fixed")


@pytest.mark.parametrize("key", ["fixed", "package_ref"])
def test_what_is_the_engines_cannot_be_given(key: str) -> None:
    with pytest.raises(BadArgumentsError, match=f"'{key}' cannot be passed to a task of ocaml"):
        ocaml().child_form({"binary": "a", key: X})


def test_a_program_is_sought_where_the_configuration_says_and_on_the_path(
    task: MakeTask, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "julia").touch(0o755)
    plain = LanguageExecutor(name="julia", command=["julia"])
    assert "set its path in [executors.julia] of the configuration" in plain.missing(
        {"PATH": "/nowhere"}
    )
    assert plain.missing({"PATH": f"/nowhere:{tmp_path}/bin"}) == ""
    at_home = LanguageExecutor(name="julia", command=["julia"], path=["~/bin"])
    assert at_home.missing({"PATH": "/nowhere", "HOME": str(tmp_path)}) == ""
    assert begun(at_home, task({})).program.env == {"PATH": f"{tmp_path}/bin:/nowhere"}


def test_haskell_finds_what_cabal_installed(task: MakeTask) -> None:
    executor = haskell()
    assert executor.missing({"PATH": "/bin", "HOME": "/nowhere/u"}) == ""
    talk = begun(executor, task({"binary": "closure"}))
    assert talk.program.env == {"PATH": "/nowhere/u/.cabal/bin:/bin"}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"command": []}, "'command' must begin with a program's name"),
    ({"command": "julia x"}, "'command' must be a list of strings"),
    ({"command": ["a", 1]}, "'command' must be a list of strings"),
    ({"command": ["a"], "env": {"A": 1}}, "'env' must be a table of strings"),
    ({"command": ["a"], "path": "~/bin"}, "'path' must be a list of strings"),
]


@pytest.mark.parametrize("options, words", BAD, ids=str)
def test_a_table_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError) as caught:
        LanguageExecutor(name="julia", **options)
    assert words in str(caught.value)


# --- skypy ----------------------------------------------------------------------------------------


def test_skypy_runs_the_stub_that_is_named(task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "pypy3").touch(0o755)
    executor = SkypyExecutor()
    assert "set CIEL_SKYPY_BASE to the directory" in executor.missing({"PATH": str(tmp_path)})
    assert executor.missing({"PATH": str(tmp_path), "CIEL_SKYPY_BASE": "/opt/skypy"}) == ""
    form = executor.child_form(
        {"pyfile_ref": X, "entry_point": "main", "entry_args": [1], "n_extra_outputs": 2}
    )
    assert (form.n_outputs, form.as_list) == (3, False)
    talk = begun(executor, task(form.arguments, outputs=("a", "b", "c")))
    assert talk.program.argv == ("pypy3", "/opt/skypy/stub.py")
    assert talk.program.env == {"PYTHONPATH": f"/opt/skypy:{Path(sdk.__file__).parent}"}
    assert talk.arguments == {
        "proc_pargs": [], "proc_kwargs": {}, "py_ref": X, "entry_point": "main", "entry_args": [1],
        "export_json": False, "run_fixed": False, "extra_outputs": [1, 2], "is_continuation": True,
        "ret_output": 0,
    }  # fmt: skip


def test_skypy_needs_a_script_and_where_to_begin() -> None:
    with pytest.raises(BadArgumentsError, match="'pyfile_ref', a reference"):
        SkypyExecutor().child_form({"entry_point": "main"})
    with pytest.raises(BadArgumentsError, match="'coro_ref', or the name of a function"):
        SkypyExecutor().child_form({"pyfile_ref": X})
    assert SkypyExecutor().child_form({"pyfile_ref": X, "coro_ref": X}).n_outputs == 1
