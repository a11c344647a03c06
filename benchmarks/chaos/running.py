"""Runs one row in a separate process, and finds leftover processes and files."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.faults import pause
from benchmarks.chaos.rows import CannotRunError, Figure, Note, Result, Row, Setting
from ciel.testing.homes import Home

SESSION: Final = "TEST_SESSION"
"""A variable that all processes of a row inherit."""
GONE_WITHIN_S: Final = 10.0
START_S: Final = 120.0
"""Extra time for a row, beyond its limit, on a slow machine."""


class Remains(Home):
    """Finds processes, files in temporary directories and shared memory that a row has left."""

    def __init__(self, path: Path, session: str) -> None:
        super().__init__(path)
        self._mark = f"{SESSION}={session}".encode()
        self.environ = os.environ | {SESSION: session, "TMPDIR": str(self.tmp)}

    def _is_ours(self, process: Path) -> bool:
        return self._mark in (process / "environ").read_bytes().split(b"\0")

    def leftovers(self) -> list[str]:
        clusters = [str(path) for path in self.path.glob("cluster*/tmp/*")]
        return [*super().leftovers(), *clusters]

    def await_nothing(self) -> list[str]:
        """Return the leftovers after a while, and end the processes."""
        until_s = time.monotonic() + GONE_WITHIN_S
        while (left := self.leftovers()) and time.monotonic() < until_s:
            pause(0.1)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


@contextmanager
def _ended_at_last(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_row(row: Row, scale: float) -> Result:
    """Run a row in a new interpreter. A row that hangs or fails gives a result that says so."""
    session = f"chaos-{secrets.token_hex(6)}"
    limit_s = START_S + row.limit_s
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ciel-chaos-") as directory:
        remains = Remains(Path(directory), session)
        output = Path(directory, "findings")
        command = [sys.executable, "-m", "benchmarks.chaos", "--inside", str(output)]
        process = subprocess.Popen(
            [*command, "--scale", str(scale), row.name],
            env=remains.environ, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        error = ""
        with _ended_at_last(process):
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                error = f"it had not ended after {limit_s:.0f} s"
        left = remains.await_nothing()
        result = read_findings(row, scale, output)
        result.error = result.error or error
        if not result.cannot_run:
            result.figures.append(Figure("left behind", len(left), "", 0))
            result.notes += [f"left behind: {_short(each)}" for each in left[:3]]
    result.took_s = time.monotonic() - started_s
    return result


def _short(text: str) -> str:
    return re.sub(r"ciel-chaos-\w+", "…", text)[:120]


def measure_here(row: Row, scale: float, output: Path) -> None:
    """Run a row in this process; append each finding to a file as soon as it is there."""
    setting = Setting(scale, output.parent)
    with open(output, "a", buffering=1) as file:
        try:
            for finding in row.measure(setting):
                kind = "note" if isinstance(finding, Note) else "figure"
                file.write(json.dumps({kind: finding}) + "\n")
            file.write(json.dumps({"ended": True}) + "\n")
        except CannotRunError as error:
            file.write(json.dumps({"cannot run": str(error)}) + "\n")
        except BaseException as error:
            file.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}) + "\n")
            traceback.print_exc()


def read_findings(row: Row, scale: float, output: Path) -> Result:
    """Return the findings that a row has written. A row that wrote no end has failed."""
    result = Result(row.name, scale)
    lines = output.read_text().splitlines() if output.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for line in found:
        if "figure" in line:
            result.figures.append(Figure(*line["figure"]))
        elif "note" in line:
            result.notes.append(line["note"][0])
    last = found[-1] if found else {}
    result.cannot_run = "cannot run" in last
    result.error = last.get("cannot run") or last.get("error") or ""
    if "ended" not in last and not result.error:
        result.error = "it ended early"
    return result


def to_json(result: Result) -> dict[str, Any]:
    """Return the JSON form of a result."""
    return asdict(result) | {"figures": [[*figure] for figure in result.figures]}


def from_json(found: dict[str, Any]) -> Result:
    """Read the JSON form of a result."""
    return Result(**(found | {"figures": [Figure(*each) for each in found["figures"]]}))
