"""Compiles C programs of tests and benchmarks, each source once for each set of flags.

The variable CIEL_SCC_SOURCES names another source directory (`scc/tests/mutants.py` uses it).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SCC = Path(os.environ.get("CIEL_SCC_SOURCES") or Path(__file__).resolve().parents[2] / "scc")
FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread")


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="c-programs-")


def _cc(*arguments: str) -> None:
    command = [*shlex.split(os.environ.get("CC", "cc")), *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


@cache
def _object(source: str, flags: Sequence[str]) -> Path:
    """Return the object file of a source, which all programs with these flags share."""
    target = Path(_directory().name, f"{len(os.listdir(_directory().name))}-{Path(source).stem}.o")
    target.touch()  # reserves the number
    _cc(*FLAGS, *flags, f"-I{SCC / 'include'}", f"-I{SCC / 'src'}", "-c", "-o", str(target),
        str(SCC / source))  # fmt: skip
    return target


@cache
def compiled(
    name: str, sources: Sequence[str], defines: Sequence[str] = (), flags: Sequence[str] = ()
) -> Path:
    """Compile a program from these sources, paths below `scc/`; return its path.

    If they do not compile, raise CalledProcessError with the compiler's messages in `stderr`.
    """
    every = (*flags, *(f"-D{define}" for define in defines))
    objects = [str(_object(source, every)) for source in sources]
    target = Path(_directory().name, f"{name}-{len(os.listdir(_directory().name))}")
    _cc(*FLAGS, *every, "-o", str(target), *objects)
    return target
