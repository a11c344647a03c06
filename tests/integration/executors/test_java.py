"""Task programs in Java on real clusters (CIB-5): they use the SDK, or were written for the
original.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.executors.jvm import JAVA_SDK
from ciel_tests.clusters.two_slots import TwoSlots

Typed = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.requirement("CIB-5")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSlots]:
    """A cluster that keeps its JVMs from test to test."""
    with TwoSlots(tmp_path_factory.mktemp("java")) as cluster:
        yield cluster


@pytest.fixture
def text(cluster: TwoSlots) -> Path:
    path = cluster.home.path / "text"
    path.write_text("one two\nthree\n" * 1000)
    return path


def jvms(cluster: TwoSlots) -> set[int]:
    """Return the processes of `java2`."""
    lines = cluster.home.processes().items()
    return {pid for pid, line in lines if "Java2Executor" in line}


def test_java_spawns_streams_waits_and_delegates(
    cluster: TwoSlots, typed: Typed, jars: dict[str, Path], text: Path
) -> None:
    command = ["java", "--package", f"book={text}", str(jars["sdk"]), "sdk.Words", "book"]
    assert typed(cluster.home, *command) == (0, f"sum 6000 {256 << 20}\n", "")
    assert "first count: 3000\n" in cluster.run("job", "log", "last").stdout
    tasks = json.loads(cluster.run("task", "list", "last", "--json").stdout)
    assert {"writer", "shell"} <= {task["name"] for task in tasks}


def test_a_program_with_a_main_method_is_a_task_of_proc(
    cluster: TwoSlots, typed: Typed, jars: dict[str, Path], text: Path
) -> None:
    text.write_text("text")
    start = {
        "command": ["java", "-cp", f"{JAVA_SDK}:{jars['sdk']}", "sdk.Main"],
        "proc_pargs": [{"__package__": "text"}],
    }
    package = {
        "package": {"text": {"filename": str(text)}},
        "start": {"handler": "proc", "args": start},
        "result": [{"__decode_ref__": "noop"}],
    }
    (cluster.home.path / "job.pack").write_text(json.dumps(package))
    for number in (1, 2):  # the second task runs in the JVM of the first
        status, out, err = typed(cluster.home, "run", "--quiet", "job.pack")
        assert (status, json.loads(out), err) == (0, [f"{number} text"], "")


@pytest.mark.parametrize(
    "argument, said",
    [
        ("executor", ["its call of 'spawn' is wrong: there is no executor 'fortran'"]),
        ("keyword", ["'slots' must be", "'many'"]),
        ("call", ["sing"]),
        (
            "child",
            [
                "java.lang.ArithmeticException: / by zero\n",
                "\tat sdk.Words$Wrong.run(Words.java:",
            ],
        ),
    ],
)
def test_a_user_reads_what_a_java_task_did_wrong(
    cluster: TwoSlots, typed: Typed, jars: dict[str, Path], argument: str, said: list[str]
) -> None:
    status, out, err = typed(cluster.home, "java", str(jars["sdk"]), "sdk.Words$Wrong", argument)
    assert (status, out) == (1, "")
    for words in said:
        assert words in err
    assert "(Java2Executor.java" not in err, "only frames of the program are shown"


@pytest.mark.parametrize(
    "name, said",
    [
        ("sdk.Absent", "no jar of 'jar_lib' has a class sdk.Absent"),
        ("sdk.Main", "sdk.Main implements neither ciel.sdk.TaskProgram nor com.asgow.ciel.tasks."),
    ],
)
def test_a_class_that_is_no_task_is_named(
    cluster: TwoSlots, typed: Typed, jars: dict[str, Path], name: str, said: str
) -> None:
    status, out, err = typed(cluster.home, "java", str(jars["sdk"]), name)
    assert (status, out) == (1, "")
    assert said in err
    assert "\tat " not in err


def test_a_program_for_the_original_spawns_waits_and_delegates(
    cluster: TwoSlots, typed: Typed, jars: dict[str, Path]
) -> None:
    (cluster.home.path / "word").write_text("hello")
    command = ["java", "--package", "words=word", str(jars["apps"]), "apps.Squares", "4", "0"]
    before = jvms(cluster)
    done = typed(cluster.home, *command)
    assert done == (0, "30 hello hello hello hello, on hosts: 1, HELLO", "")
    log = cluster.run("job", "log", "last").stdout
    assert log.endswith("a sum of 4\n")
    assert 1 <= len(jvms(cluster) - before) <= 3, "they are kept, and used again"


def test_an_exception_of_a_program_for_the_original_is_shown(
    cluster: TwoSlots, typed: Typed, jars: dict[str, Path]
) -> None:
    status, out, err = typed(cluster.home, "java", str(jars["apps"]), "apps.Broken", "me")
    assert (status, out) == (1, "")
    assert "on worker" in err
    assert "java.lang.IllegalArgumentException: broken by me\n" in err
    assert "\tat apps.Broken.invoke(Broken.java:" in err
