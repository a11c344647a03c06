"""Programs in C and C++ that tests compile with `ciel-cc`, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ciel.executors.sdk.heap.building import missing, toolchain

HEAP_TESTS = Path(__file__).parents[2] / "heap"
PROGRAMS = sorted((HEAP_TESTS / "programs").iterdir())
TRANSLATIONS = ("heap", "full")
RAM_MIN_BYTES = 256 << 10


def why_no_compiler() -> str:
    """Return what `ciel-cc` lacks here; "" if nothing."""
    return missing() or ("" if Path("/usr/include/lmdb.h").exists() else "liblmdb-dev is missing")


def ciel_cc(*options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `ciel-cc`."""
    command = [sys.executable, "-m", "ciel.executors.sdk.heap.compiler", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def flags_of(source: Path) -> list[str]:
    """Return the options that a program of `tests/heap` is compiled with."""
    standard = "-std=c++17" if source.suffix == ".cpp" else "-std=gnu11"
    return ["-O2", standard, "-pthread", "-Wno-deprecated-declarations", str(source), "-lm"]


def translated(source: Path, where: Path, translation: str) -> Path:
    """Compile a program with `ciel-cc`, and return its path."""
    program = where / f"{source.stem}-{translation}"
    done = ciel_cc(f"--memory={translation}", *flags_of(source), "-o", program)
    assert done.returncode == 0, done.stderr
    return program


def plain(source: Path, where: Path) -> Path:
    """Compile a program with the same compiler and nothing else, and return its path."""
    program = where / f"{source.stem}-plain"
    tools = toolchain()
    compiler = tools.clangxx if source.suffix == ".cpp" else tools.clang
    subprocess.run([compiler, *flags_of(source), "-o", program], check=True, timeout=300)
    return program


@dataclass(frozen=True)
class Result:
    """What a program did."""

    status: int
    out: str
    err: str


def run(
    program: Path, *arguments: str, heap: str | None = None, ram: str | None = None,
    variables: Mapping[str, str] | None = None, timeout_s: float = 100,
) -> Result:  # fmt: skip
    """Run a program whose heap lies in a store, or in memory if `heap` is None."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CIEL_HEAP")}
    environment |= {} if heap is None else {"CIEL_HEAP": heap}
    environment |= {} if ram is None else {"CIEL_HEAP_RAM": ram}
    environment |= variables or {}
    command: Sequence[str] = [str(program), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)
