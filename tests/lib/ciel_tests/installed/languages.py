"""Finds compilers and libraries of other languages, as `.ci/packages` does; skips tests without
them.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from ciel.executors.jvm import JAVA_SDK

OCAML_SDK: Final = JAVA_SDK.parents[1] / "ocaml" / "ciel.ml"
LANGUAGES: Final = Path(__file__).parents[4] / "examples" / "languages"


@cache
def _works(*argv: str) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, check=False, input=b"").returncode == 0
    except FileNotFoundError:
        return False


def is_there(need: str) -> bool:
    """Whether a program, a C header (`name.h`) or a Perl module (`Name::Name`) is installed."""
    if need.endswith(".h"):
        return _works("cc", "-E", "-include", need, "-x", "c", "-")
    if "::" in need:
        return _works("perl", f"-M{need}", "-e", "1")
    return shutil.which(need) is not None


def require_jansson() -> None:
    """Skip a test if a task in C cannot be compiled."""
    if not is_there("jansson.h"):
        pytest.skip("jansson.h is missing (Debian: libjansson-dev): 'make deps' installs it")


def require_perl() -> None:
    """Skip a test if a task in Perl cannot run."""
    if not is_there("JSON::PP"):
        pytest.skip("perl with JSON::PP is missing (Debian: perl): 'make deps' installs it")


def require_java() -> None:
    """Skip a test if Java cannot be compiled and run."""
    if not (_works("java", "-version") and _works("javac", "-version")):
        pytest.skip("a JDK is missing (Debian: default-jdk-headless): 'make deps' installs it")


def require_ocaml() -> None:
    """Skip a test if OCaml cannot be compiled."""
    _require("ocamlopt", "ocaml")


def require_haskell() -> None:
    """Skip a test if Haskell cannot run."""
    _require("runhugs", "hugs")


def require_pypy() -> None:
    """Skip a test if PyPy is not installed."""
    _require("pypy3", "pypy3")


def _require(program: str, package: str) -> None:
    if not is_there(program):
        pytest.skip(f"{program} is missing (Debian: {package}): 'make deps' installs it")


def build_ocaml(source: Path, target: Path) -> Path:
    """Compile a task in OCaml with its bindings; return the program."""
    require_ocaml()
    sources = [shutil.copy(path, target) for path in (OCAML_SDK, source)]
    program = target / source.stem
    command = [
        "ocamlopt",
        "-g",
        "-w",
        "+a-4-40..42-44-70",
        "-I",
        str(target),
        "-o",
        str(program),
        *sources,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def build_jars(sources: Path, target: Path) -> dict[str, Path]:
    """Compile the Java files in a directory, and pack each subdirectory into a jar of its name."""
    require_java()
    classes = target / "classes"
    command = ["javac", "--release", "11", "-Xlint:all", "-Werror", "-cp", str(JAVA_SDK)]
    command += ["-d", str(classes)]
    command += map(str, sorted(sources.rglob("*.java")))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    jars = {}
    for top in sorted(classes.iterdir()):
        jars[top.name] = target / f"{top.name}.jar"
        with zipfile.ZipFile(jars[top.name], "w") as jar:
            for path in sorted(top.rglob("*.class")):
                jar.write(path, path.relative_to(classes))
    return jars
