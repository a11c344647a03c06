"""Compares all messages about planted failures with texts in tests/stories/golden.

Many stories share a cluster. Ids, addresses and paths are replaced by names, numbered in the order
in which they occur. `CIEL_STORIES=write` writes the texts again. Review each change from the view
of a user who meets the failure.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ciel.testing.homes import BIN, WORKER_ID, HandCluster

GOLDEN = Path(__file__).parents[4] / "tests" / "stories" / "golden"
IS_WRITING = os.environ.get("CIEL_STORIES") == "write"

_NAMED: Sequence[tuple[str, str]] = (
    ("cluster C", r"\bcluster [0-9a-f]{16}\b"),
    ("@ciel-NAME", r"@ciel-[0-9a-f]{8}-[0-9a-f]{16}\b"),
    ("W", WORKER_ID),
    ("ID", r"\b[0-9a-f]{32}\b"),
    ("HOST:", r"\b127\.0\.0\.1:\d{4,5}\b"),
)
_ALIKE: Sequence[tuple[str, str]] = (
    (r"\bjob (wait )?\d+\b", r"job \1N"),
    (r"\b[\d.]+ s ago", "T s ago"),
    (r"\bretried in [\d.]+ s", "retried in T s"),
    (r"\bciel \d[\w.]*, up for", "ciel VERSION, up for"),
    (r"\b(used|wanted) [\d.]+ MiB", r"\1 N MiB"),
    (r"\b0x[0-9a-f]+\b", "0xADDRESS"),
    (r"\((offered|there are): .*\)", r"(\1: …)"),
    (r"\b\d+ more queued", "N more queued"),
    (r"\b\d+ tasks of its priority", "N tasks of its priority"),
    (r"\b(time:|up for) .*", r"\1 T"),
    (r"\b\d\d:\d\d:\d\d\b", "CLOCK"),
    (r"(?<=\S) {2,}", "  "),  # the width of columns depends on host names
    (r"\b\d+\.\ds\b", "T"),
    (r"\b\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d+\b", "RUN"),
    (r"\b\d+ slots?\b(?=;)", "N slots"),
    (r"\bwas lost \(.*?\)", "was lost (WHY)"),
    # Only the user's part of a Python traceback: lines of ciel, and marks below lines, may change.
    (r'  File "(?!HOME).*\n(    .*\n)*', ""),
    (r" +[~^]+\n", ""),
)


class Transcript:
    """Commands of a home, with their output."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places
        self.parts: list[str] = []

    def note(self, command: str, status: int, output: str, said: str) -> None:
        """Add a finished command."""
        ending = f"(exit status {status})\n" if status else ""
        self.parts.append(f"$ {command}\n{output}{said}{ending}")

    @property
    def text(self) -> str:
        """The whole text, with names in place of values that differ; the longest path is replaced
        first.
        """
        text = "\n".join(self.parts)
        for place in sorted(self._places, key=len, reverse=True):
            text = text.replace(place, self._places[place])
        for prefix, pattern in _NAMED:
            seen: dict[str, str] = {}
            for found in re.findall(pattern, text):
                seen.setdefault(found, f"{prefix}{len(seen) + 1}")
            for found, name in seen.items():
                text = text.replace(found, name)
        for pattern, what in _ALIKE:
            text = re.sub(pattern, what, text)
        return text

    def expect(self, name: str) -> None:
        """Compare with the golden text of that name."""
        golden = GOLDEN / f"{name}.txt"
        if IS_WRITING:
            golden.write_text(self.text)
        expected = golden.read_text() if golden.exists() else ""
        changes = difflib.unified_diff(expected.splitlines(), self.text.splitlines(), lineterm="")
        assert self.text == expected, "\n".join(["the text is now different:", *changes])


class Stage:
    """A cluster for stories, in a private home."""

    def __init__(self, cluster: HandCluster, typed: Callable[..., tuple[int, str, str]]) -> None:
        """`typed` runs a `ciel` command in a home; it returns exit status, output and messages."""
        self.cluster = cluster
        self.home = cluster.home
        self._typed = typed

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a `ciel` command in this process."""
        return self._typed(self.home, *words)

    def add(self, files: Mapping[str, str]) -> None:
        """Write programs and other files into the home; HOME in them stands for its path."""
        for name, content in files.items():
            path = self.home.path / name
            path.write_text(content.replace("HOME", str(self.home.path)))
            path.chmod(0o755 if content.startswith("#!") or name == "script" else 0o644)

    def places(self) -> dict[str, str]:
        """Return the paths that differ from run to run, with their names."""
        found = {str(self.home.path): "HOME", str(BIN): "BIN"}
        return found | {str(spool): "SPOOL" for spool in self.home.tmp.iterdir()}

    def tell(self, *commands: str) -> Transcript:
        """Run commands in turn, `ciel` commands in this process; return the transcript."""
        transcript = Transcript(self.places())
        for command in commands:
            program, *words = shlex.split(command)
            if program == "ciel":
                transcript.note(command, *self.run(*words))
            else:
                done = self.home.run(program, *words)
                transcript.note(command, done.returncode, done.stdout, done.stderr)
        return transcript
