"""C programs of the tests, compiled once for each set of flags.

CIEL_SCC_SOURCES leads to other sources than those of this tree (`scc/tests/mutants.py`).
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
    """Return one source's object, which every program with those flags shares."""
    target = Path(_directory().name, f"{len(os.listdir(_directory().name))}-{Path(source).stem}.o")
    target.touch()  # its number is taken
    _cc(*FLAGS, *flags, f"-I{SCC / 'include'}", f"-I{SCC / 'src'}", "-c", "-o", str(target),
        str(SCC / source))  # fmt: skip
    return target


@cache
def compiled(
    name: str, sources: Sequence[str], defines: Sequence[str] = (), flags: Sequence[str] = ()
) -> Path:
    """Return the program made of these sources, which are named as seen from `scc/`.

    Raises CalledProcessError, whose `stderr` is the compiler's, when they do not compile.
    """
    every = (*flags, *(f"-D{define}" for define in defines))
    objects = [str(_object(source, every)) for source in sources]
    target = Path(_directory().name, f"{name}-{len(os.listdir(_directory().name))}")
    _cc(*FLAGS, *every, "-o", str(target), *objects)
    return target
