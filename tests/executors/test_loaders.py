"""Loaders of classes and functions: command lines, messages, and hosts that lack a program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ciel.core.refs import Future
from ciel.core.tasks import Needs
from ciel.execution.executor import (
    BadArgumentsError,
    Executor,
    InputPath,
    OutputPath,
    Program,
    Run,
    Task,
)
from ciel.executors import loaders
from ciel.executors.jvm import JAVA_SDK
from ciel.executors.loaders import CsoExecutor, DotnetExecutor, JavaExecutor
from ciel.testing.builders import inline

A, B, LIB = (inline(name) for name in ("a", "b", "lib"))
MakeTask = Callable[..., Task]


def program(executor: Executor, task: Task) -> Program:
    action = executor.begin(task)
    assert isinstance(action, Run)
    return action.program


@pytest.fixture
def host(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a host that has these programs, and maybe a directory of jars."""

    def host(*programs: str, **environ: str) -> dict[str, str]:
        for name in programs:
            (tmp_path / name).touch(0o755)
        return {"PATH": str(tmp_path), **environ}

    return host


Host = Callable[..., dict[str, str]]


def test_a_loader_is_told_what_it_may_open(task: MakeTask, host: Host, tmp_path: Path) -> None:
    java = JavaExecutor(options=["-Xshare:auto"])
    assert java.missing(host("java", "javac")) == ""
    args = {"class": "a.B", "lib": [LIB], "inputs": [A, B], "argv": ["x", 1, A]}
    found = program(java, task({"args": args}, A, B, LIB, executor="java", outputs=("o", "p")))
    assert found.argv[:3] == (f"{tmp_path}/java", "-Xshare:auto", "-cp")
    assert found.argv[-2:] == ("a.B", ".jars/0.jar")
    assert found.files == {".jars/0.jar": "lib"}
    assert found.names == (
        "2,2,3", InputPath(A.id), InputPath(B.id), OutputPath(0), OutputPath(1), "x", "1",
        InputPath(A.id),
    )  # fmt: skip


def test_jars_of_the_host_are_on_the_class_path(task: MakeTask, host: Host, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("b.jar", "a.jar", "readme"):
        (tmp_path / "lib" / name).touch()
    java = JavaExecutor()
    assert java.missing(host("java", "javac", CIEL_JARS_DIR=f"{tmp_path}/lib")) == ""
    argv = program(java, task({"args": {"class": "B", "lib": [LIB]}}, LIB)).argv
    class_path = str(argv[argv.index("-cp") + 1]).split(":")
    assert class_path == [f"{tmp_path}/lib/a.jar", f"{tmp_path}/lib/b.jar", str(JAVA_SDK)]


def test_a_heap_keeps_within_the_memory_of_its_task(task: MakeTask, host: Host) -> None:
    java = JavaExecutor()
    assert java.missing(host("java", "javac")) == ""
    begun = task({"args": {"class": "B", "lib": [LIB]}}, LIB)
    limited = begun._replace(spec=begun.spec._replace(needs=Needs(memory_bytes=1 << 30)))
    assert "-Xmx768M" in program(java, limited).argv
    assert not [word for word in program(java, begun).argv if str(word).startswith("-Xmx")]


def test_a_host_says_what_it_lacks_for_java(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no 'java' on this host: install one" in JavaExecutor().missing(host())
    said = JavaExecutor().missing(host("java", CIEL_JARS_DIR="/nowhere"))
    assert said == "CIEL_JARS_DIR names /nowhere, but this directory does not exist"
    monkeypatch.setattr(loaders, "JAVA_SDK", tmp_path / "absent.jar")
    assert "because javac was missing when ciel was installed" in JavaExecutor().missing(
        host("java")
    )
    assert JavaExecutor().missing(host("java", "javac")) == ""
    elsewhere = {"PATH": "/nowhere", "JAVA_HOME": str(tmp_path / "jdk")}
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    for name in ("java", "javac"):
        (tmp_path / "jdk" / "bin" / name).touch(0o755)
    assert JavaExecutor().missing(elsewhere) == ""


def test_a_loader_that_was_not_built_is_compiled_each_time(
    task: MakeTask, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "JAVA_SDK", tmp_path / "absent.jar")
    java = JavaExecutor()
    assert java.missing(host("java", "javac")) == ""
    argv = program(java, task({"args": {"class": "B", "lib": [LIB]}}, LIB)).argv
    assert argv[-3:] == (str(loaders.JAVA_SOURCE), "B", ".jars/0.jar")
    assert loaders.JAVA_SOURCE.is_file()


def test_shared_objects_are_loaded_from_copies(task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "loader").touch()
    cso = CsoExecutor()
    assert cso.missing({"SW_C_LOADER_PATH": f"{tmp_path}/loader"}) == ""
    found = program(cso, task({"args": {"entry_point": "f", "lib": [LIB, A]}}, LIB, A))
    loaded = (InputPath(LIB.id, executable=True), InputPath(A.id, executable=True))
    assert found.argv == (f"{tmp_path}/loader", "f", *loaded)
    assert found.names == ("0,1,0", OutputPath(0))


def test_a_host_says_what_it_lacks_for_shared_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = CsoExecutor().missing({"SW_C_LOADER_PATH": "/nowhere/loader"})
    assert said == "SW_C_LOADER_PATH names /nowhere/loader, but this file does not exist"
    monkeypatch.setattr(loaders, "C_LOADER", tmp_path / "absent")
    assert "absent does not exist: install ciel again" in CsoExecutor().missing({})


def test_dotnet_is_left_out_and_says_so(task: MakeTask) -> None:
    said = DotnetExecutor().missing({})
    assert "ciel does not support dotnet" in said
    with pytest.raises(BadArgumentsError, match="ciel does not support dotnet"):
        DotnetExecutor().begin(task({}))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"lib": []}, "java needs a list 'lib' of at least one reference"),
    ({"lib": "x.jar"}, "'lib' must be a list of references"),
    ({"class": None}, "'class' must be a non-empty string without NUL characters, not None"),
    ({"class": "a\0b"}, "'class' must be a non-empty string"),
    ({"argv": "x"}, "'argv' must be a list of strings, numbers and references"),
    ({"argv": ["a\0"]}, "element 0 of 'argv' contains a NUL character"),
    ({"inputs": ["x"]}, "'inputs' must be a list of references"),
    ({"debug_options": 1}, "'debug_options' must be a list of strings"),
]


@pytest.mark.parametrize("args, words", BAD, ids=str)
def test_bad_arguments_are_named(task: MakeTask, args: dict[str, Any], words: str) -> None:
    whole: dict[str, Any] = {"class": "B", "lib": [Future(LIB.id)]} | args
    with pytest.raises(BadArgumentsError) as caught:
        JavaExecutor().begin(task({"args": whole}, LIB, executor="java"))
    assert words in str(caught.value)
