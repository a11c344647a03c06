"""Provides programs of a few lines, which run against a stand-in for a worker."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from ciel.testing.stand_in import StandIn
from ciel_tests.installed.languages import require_jansson

SDK = Path(__file__).parents[2] / "executors" / "sdk"
SANITIZED = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]

Start = Callable[..., StandIn]


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Start]:
    """Start a program in its own directory."""
    with ExitStack() as stack:
        count = 0

        def start(*argv: str, **options: bool) -> StandIn:
            nonlocal count
            count += 1
            directory = tmp_path / f"program{count}"
            directory.mkdir()
            environ = os.environ | {"PYTHONPATH": str(SDK), "CIEL_SCRATCH": str(directory)}
            return stack.enter_context(StandIn(directory, argv, environ, **options))

        yield start


@pytest.fixture
def python(tmp_path: Path, programs: Start) -> Start:
    """Start a program whose `run(task)` has this body, served by the SDK."""

    def start(body: str, *, keep: bool = True, before: str = "") -> StandIn:
        lines = textwrap.indent(textwrap.dedent(body), "    ")
        script = tmp_path / "program.py"
        script.write_text(
            f"import ciel_task\n{textwrap.dedent(before)}\n"
            f"def run(task):\n{lines}\n\nciel_task.serve(run, keep={keep})\n"
        )
        return programs(sys.executable, str(script))

    return start


Compile = Callable[..., str]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile a C program with libciel and sanitizers; return its path."""
    require_jansson()
    directory = tmp_path_factory.mktemp("c")

    def cc(target: Path, *arguments: str) -> str:
        command = ["cc", *SANITIZED, *STRICT, f"-I{SDK}/c", "-o", str(target), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return str(target)

    @cache
    def library(name: str, *flags: str) -> str:
        source = SDK / "c" / f"{name}.c"
        return cc(directory / f"{name}{''.join(flags)}.o", "-c", *flags, str(source))

    @cache
    def compile_(source: str, *flags: str) -> str:
        path = directory / f"program{len(list(directory.iterdir()))}.c"
        path.write_text(source + "\n")
        names = ["ciel"]
        if "ciel_arrow.h" in source:
            names += ["ciel_arrow", "ciel_table"]
        libraries = [library(name, *flags) for name in names]
        return cc(path.with_suffix(""), str(path), *libraries, "-ljansson")

    return compile_


C_PROGRAM = """\
#include <ciel.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char *argv[])
{
    ciel_init(argv[argc - 3], argv[argc - 1]);
    json_t *task = ciel_get_task();
    json_t *first = json_array_get(json_object_get(task, "proc_pargs"), 0);
    (void)first;
%s
    json_decref(task);
    return 0;
}
"""


@pytest.fixture
def c(compiled: Compile, programs: Start) -> Start:
    """Start a C program with this body of `main`: `task` is the task, `first` its first
    argument.
    """

    def start(body: str, *flags: str) -> StandIn:
        return programs(compiled(C_PROGRAM % body, *flags))

    return start
