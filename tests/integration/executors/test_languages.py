"""Tests tasks in languages other than Python (CIB-5): loaders, interactive programs with their own
executors, and third-party executors. `test_hosts` runs them on two hosts.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from ciel.testing.homes import HandCluster, Home
from ciel_tests.clusters.two_slots import TwoSlots
from ciel_tests.installed.languages import (
    LANGUAGES,
    build_ocaml,
    require_perl,
    require_pypy,
)

EXAMPLES: Final = Path(__file__).parents[3] / "examples"

SETTINGS: Final = f"""
[executors.perl]                              # a language of our own
command = ["perl", "{EXAMPLES}/proc/wordcount.pl"]

[executors.julia]                             # which is not on this host
command = ["ciel-no-such-julia"]

[executors.cobol]
comand = ["cobol"]

[executors.java]
options = ["-Xmx64M"]

[executors.sql]
time_limit_s = 20.0
"""

Typed = Callable[..., tuple[int, str, str]]


def add_example(target: Path) -> None:
    """Install the third-party example and its metadata, as `pip install` would."""
    shutil.copytree(EXAMPLES / "executor", target)
    project = tomllib.loads((target / "pyproject.toml").read_text())["project"]
    about = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    with open(about / "entry_points.txt", "w") as file:
        for group, points in project["entry-points"].items():
            lines = [f"{name} = {where}\n" for name, where in points.items()]
            file.write("".join([f"[{group}]\n", *lines]))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSlots]:
    path = tmp_path_factory.mktemp("languages")
    (path / "config" / "ciel").mkdir(parents=True)
    (path / "config" / "ciel" / "config.toml").write_text(SETTINGS)
    add_example(path / "sql")
    cluster = TwoSlots(path)
    cluster.home.environ["CIEL_SKYPY_BASE"] = str(LANGUAGES / "skypy")
    cluster.home.environ["PYTHONPATH"] = str(path / "sql")
    with cluster:
        yield cluster


@pytest.fixture
def run(cluster: TwoSlots, typed: Typed) -> Callable[..., Any]:
    """Run the first task of a package; return the contents of its outputs, as text."""

    def run(
        handler: str,
        args: dict[str, Any],
        *,
        n_outputs: int = 1,
        files: Mapping[str, Path] = MappingProxyType({}),
    ) -> list[str]:
        package = {
            "package": {key: {"filename": str(path)} for key, path in files.items()},
            "start": {"handler": handler, "args": args},
            "result": [{"__decode_ref__": "noop"}] * n_outputs,
        }
        (cluster.home.path / "job.pack").write_text(json.dumps(package))
        status, out, err = typed(cluster.home, "run", "--quiet", "job.pack")
        if status:
            raise JobFailedError(cluster.plain(err))
        found: list[str] = json.loads(out)
        return found

    return run


class JobFailedError(Exception):
    """A job has failed; the text is the message that its user reads."""


Run = Callable[..., list[str]]


def part(key: str) -> dict[str, str]:
    return {"__package__": key}


# --- java -----------------------------------------------------------------------------------------


@pytest.fixture
def lines(cluster: TwoSlots) -> Path:
    path = cluster.home.path / "lines"
    path.write_text("apple\npear\nbanana\n")
    return path


@pytest.mark.slow
def test_a_class_gets_streams_and_arguments(
    cluster: TwoSlots, run: Run, jars: dict[str, Path], lines: Path
) -> None:
    args = {"class": "apps.Lines", "lib": [part("jar")], "inputs": [part("in")] * 2, "argv": ["an"]}
    found = run("java", {"args": args, "n_outputs": 2}, n_outputs=2,
                files={"jar": jars["apps"], "in": lines})  # fmt: skip
    assert found == ["banana\n" * 2, "apple\npear\n" * 2]
    assert "looked for an\n" in cluster.run("job", "log", "last").stdout


def test_an_exception_of_a_class_is_shown_with_its_own_frames_only(
    run: Run, jars: dict[str, Path]
) -> None:
    args = {"class": "apps.Lines", "lib": [part("jar")]}
    with pytest.raises(JobFailedError) as caught:
        run("java", args, files={"jar": jars["apps"]})
    shown = re.sub(r"\S*/(java|ciel-sdk\.jar)", r"\1", str(caught.value))
    assert shown.splitlines()[:5] == [
        "ciel: java -Xmx64M -cp ciel-sdk.jar ciel.TaskLoader apps.Lines .jars/0.jar ended with "
        "exit status 1 on worker W",
        "the end of its standard error:",
        "  java.lang.IllegalArgumentException: no word to look for",
        "  \tat apps.Lines.write(Lines.java:25)",
        "  \tat apps.Lines.invoke(Lines.java:16)",
    ]
    assert "\tat " not in "".join(shown.splitlines()[5:])


@pytest.mark.parametrize(
    "name, said",
    [
        ("apps.Absent", "ciel: no jar of 'lib' has a class apps.Absent"),
        ("apps.Unloaded", "ciel: apps.Unloaded cannot be loaded: java.lang.ExceptionInInitializer"),
        ("java.lang.String", "no public method invoke(InputStream[], OutputStream[], String[])"),
    ],
)
def test_a_class_that_cannot_be_a_task_is_named(
    run: Run, jars: dict[str, Path], name: str, said: str
) -> None:
    with pytest.raises(JobFailedError) as caught:
        run("java", {"class": name, "lib": [part("jar")]}, files={"jar": jars["apps"]})
    assert said in str(caught.value)


# --- cso ------------------------------------------------------------------------------------------

LIBRARY: Final = """
#include <unistd.h>
int power_of(int base, int exponent) { return exponent ? base * power_of(base, exponent - 1) : 1; }
"""
SHARED: Final = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "sw_task.h"
int power_of(int base, int exponent);
sw_task copy, fail;
int copy(int n_in, int *in_fds, int n_out, int *out_fds, int argc, char **argv)
{
    char bytes[65536];
    for (int i = 0; i < n_in; i++)
        for (ssize_t got; (got = read(in_fds[i], bytes, sizeof bytes)) > 0;)
            for (int j = 0; j < n_out; j++)
                if (write(out_fds[j], bytes, got) != got)
                    return -1;
    dprintf(out_fds[n_out - 1], "%d %d\\n", power_of(atoi(argv[0]), atoi(argv[1])), argc);
    return 0;
}
int fail(int n_in, int *in_fds, int n_out, int *out_fds, int argc, char **argv) { return 256; }
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build two shared objects, the second of which needs the first."""
    path = tmp_path_factory.mktemp("cso")
    include = EXAMPLES.parent / "executors" / "sdk" / "c"
    for name, source in (("powers", LIBRARY), ("copying", SHARED)):
        (path / f"{name}.c").write_text(source)
        command = ["cc", "-shared", "-fPIC", f"-I{include}", "-o", f"{name}.so", f"{name}.c"]
        subprocess.run(command, cwd=path, check=True)
    return {name: path / f"{name}.so" for name in ("powers", "copying")}


@pytest.mark.requirement("CIB-5")
def test_a_function_gets_descriptors_and_arguments(
    run: Run, libraries: dict[str, Path], lines: Path
) -> None:
    args = {
        "lib": [part("powers"), part("copying")], "entry_point": "copy",
        "inputs": [part("in"), part("in")], "argv": [2, 10], "n_outputs": 2,
    }  # fmt: skip
    found = run("cso", args, n_outputs=2, files={**libraries, "in": lines})
    assert found == [lines.read_text() * 2, lines.read_text() * 2 + "1024 2\n"]


@pytest.mark.parametrize(
    "args, said",
    [
        ({"entry_point": "fail"}, "ciel: fail returned 256"),
        ({"entry_point": "absent"}, "ciel: no library of 'lib' has a function absent"),
        ({"lib": [part("copying")]}, "ciel: library 1 of 'lib' cannot be loaded: "),
        (
            {"entry_point": ""},
            "'entry_point' must be a non-empty string without NUL characters, not ''",
        ),
        ({"lib": []}, "cso needs a list 'lib' of at least one reference"),
        ({"argv": [None]}, "element 0 of 'argv' must be a string, a number or a reference"),
    ],
    ids=str,
)
def test_a_fault_of_a_function_is_reported(
    run: Run, libraries: dict[str, Path], args: dict[str, Any], said: str
) -> None:
    whole = {"lib": [part("powers"), part("copying")], "entry_point": "copy"} | args
    with pytest.raises(JobFailedError) as caught:
        run("cso", whole, files=libraries)
    assert said in str(caught.value)


# --- ciel java ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        (["absent.jar", "X"], "JAR: absent.jar: the file does not exist"),
        (["-j", ".", "lines", "X"], "a jar: .: it is not a regular file"),
        (["-L", "absent", "lines", "X"], "--jar-lib absent: the directory does not exist"),
        (["-P", "key", "lines", "X"], "--package key: expected KEY=FILE"),
        (["-P", "key=absent", "lines", "X"], "--package key: absent: the file does not exist"),
    ],
    ids=str,
)
def test_missing_jars_are_reported_before_any_upload(
    cluster: TwoSlots, typed: Typed, lines: Path, words: list[str], said: str
) -> None:
    status, out, err = typed(cluster.home, "java", *words)
    assert (status, out) == (2, "")
    assert said in err


# --- configured languages -------------------------------------------------------------------------

TELLER: Final = f"""#!{sys.executable}
from ciel.executors.sdk import ciel_task
import json, sys

def run(task):
    told = {{key: repr(value) for key, value in task.private.items()}}
    task.publish(0, json.dumps([sys.argv[1], task.private["args"], sorted(told)]).encode())
    if "fn_ref" in told:
        task.publish(1, task.read(task.private["fn_ref"]))

ciel_task.serve(run)
"""


CLOSURE: Final = """
open Ciel

let run task =
  let number = function [ Number text ] -> int_of_string text | _ -> failwith "no number" in
  let x = number (elements (member "args" task)) in
  match member "fn_ref" task with
  | Null ->  (* a successor is to go on with a function of this program, and what it has captured *)
      let fn = publish (allocate "fn") (Marshal.to_string (( * ) x) [ Marshal.Closures ]) in
      let args = List [ Number "6" ] in
      tail_spawn "ocaml" [ ("binary", member "binary" task); ("fn_ref", fn); ("args", args) ]
  | fn ->
      let f : int -> int = Marshal.from_channel (open_in_bin (path fn)) in
      ignore (publish 0 (string_of_int (f x)))

let () = serve run
"""
LEAVING_OFF: Final = """
import sys
from skypy import deref, deref_as_raw_file, open_output, spawn

def main(lines):
    print(sys.implementation.name, "begins")
    with deref_as_raw_file(lines) as file:
        loud = [spawn("shout", line.decode()) for line in file]
    with open_output(1) as extra:  # what is written before it leaves off is taken back
        extra.write(b"begun ")
        extra.write(deref(loud[0]).encode())
        extra.write(b", ended")
    return [deref(line) for line in loud]

def shout(text):
    return text.upper()
"""


@pytest.mark.parametrize("language", ["ocaml", "haskell"])
def test_the_words_of_a_binary_are_run_with_their_task(
    cluster: TwoSlots, run: Run, lines: Path, language: str
) -> None:
    if language == "haskell":  # the directory where cabal installs programs
        (cluster.home.path / ".cabal" / "bin").mkdir(parents=True)
        cluster.add_program(".cabal/bin/told", TELLER)
        binary = "told first"
    else:
        binary = f"{cluster.add_program('told', TELLER)} first"
    args = {"binary": binary, "fn_ref": part("fn"), "args": ["x", 1], "n_outputs": 2}
    told, fn = run(language, args, n_outputs=2, files={"fn": lines})
    keys = ["args", "binary", "fn_ref", "proc_kwargs", "proc_pargs"]
    assert json.loads(told) == ["first", ["x", 1], keys]
    assert fn == lines.read_text()


@pytest.mark.requirement("CIB-5")
def test_a_task_in_ocaml_delegates_to_a_closure(
    cluster: TwoSlots, run: Run, tmp_path: Path
) -> None:
    cluster.add_program("closure.ml", CLOSURE)
    binary = str(build_ocaml(cluster.home.path / "closure.ml", tmp_path))
    assert run("ocaml", {"binary": binary, "args": [7]}) == ["42"]
    with pytest.raises(JobFailedError) as caught:
        run("ocaml", {"binary": binary, "args": ["seven"]})
    assert 'closure on worker W: Failure("no number")\n' in str(caught.value)
    assert 'closure.ml", line 5, characters ' in str(caught.value)


def test_a_script_in_pypy_continues_in_another_task(
    cluster: TwoSlots, run: Run, lines: Path
) -> None:
    require_pypy()
    script = cluster.home.path / "script.py"
    script.write_text(LEAVING_OFF)
    args = {"pyfile_ref": part("script"), "entry_point": "main", "entry_args": [part("in")],
            "n_extra_outputs": 1, "export_json": True}  # fmt: skip
    found = run("skypy", args, n_outputs=2, files={"script": script, "in": lines})
    assert found == [json.dumps(["APPLE\n", "PEAR\n", "BANANA\n"]), "begun APPLE\n, ended"]
    log = cluster.run("job", "log", "last").stdout
    assert log.count("pypy begins\n") >= 2, "it has not left off"


def test_another_language_is_added_by_a_table_of_the_configuration(
    cluster: TwoSlots, run: Run, lines: Path
) -> None:
    require_perl()
    args = {"proc_pargs": [part("in")]}
    assert run("perl", args, files={"in": lines}) == ["3\n"]


def test_an_executor_that_cannot_run_is_named_with_its_missing_requirement(
    run: Run, lines: Path
) -> None:
    for handler, why in (
        (
            "julia",
            "this host has no program 'ciel-no-such-julia': install it, or set its path in "
            "[executors.julia] of the configuration",
        ),
        (
            "cobol",
            "it cannot be set up (HOME/config/ciel/config.toml line 8): 'comand' is unknown; "
            "the keys are: command, env, path, memoise",
        ),
        (
            "dotnet",
            "ciel does not support dotnet: run the program itself by stdinout, env or proc, or add "
            "an executor with another name (docs/executors.md)",
        ),
    ):
        with pytest.raises(JobFailedError) as caught:
            run(handler, {"args": []})
        assert f"no worker offers the executor '{handler}' (offered: " in str(caught.value)
        assert f"\nworker W: {why}\n" in str(caught.value)


@pytest.mark.slow
def test_a_worker_creates_tasks_that_only_another_worker_can_run(home: Home, typed: Typed) -> None:
    require_pypy()
    cluster = HandCluster.start(home, workers=1)
    home.environ["CIEL_SKYPY_BASE"] = str(LANGUAGES / "skypy")
    cluster.start_worker()
    (home.path / "script.py").write_text("def main(): return 7\n")
    args = {"pyfile_ref": part("script"), "entry_point": "main", "export_json": True}
    package = {
        "package": {"script": {"filename": "script.py"}},
        "start": {"handler": "skypy", "args": args},
        "result": [{"__decode_ref__": "json"}],
    }
    (home.path / "job.pack").write_text(json.dumps(package))
    for _ in range(4):  # either of them starts a job
        status, out, err = typed(home, "run", "--quiet", "job.pack")
        assert (status, json.loads(out)) == (0, [7]), err
    cluster.stop()


# --- third-party executors ------------------------------------------------------------------------


def test_an_executor_of_another_package_is_found_and_set_up(
    cluster: TwoSlots, typed: Typed
) -> None:
    package = str(EXAMPLES / "executor" / "rainfall.pack")
    status, out, err = typed(cluster.home, "run", "--quiet", package)
    assert (status, json.loads(out), err) == (0, ["place,mm\nBergen,445\nCairo,5\nLima,1\n"], "")


def test_an_executor_of_another_package_reports_failures_in_its_own_words(run: Run) -> None:
    with pytest.raises(JobFailedError) as caught:
        run("sql", {"query": "SELECT * FROM nowhere"})
    assert "found something wrong with the query on worker W" in str(caught.value)
    assert "sql: no such table: nowhere" in str(caught.value)
    with pytest.raises(JobFailedError, match="'query' must be a text"):
        run("sql", {"query": 7})
