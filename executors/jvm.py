"""Finds Java on a worker's host, and builds its command lines."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

JAVA_SDK = Path(__file__).parent / "sdk" / "java" / "ciel-sdk.jar"
"""The SDK for Java; missing if ciel was installed without a compiler for Java."""
INSTALL = "install one (Debian: default-jre-headless), or set JAVA_HOME"


class Jvm:
    """A `java` command with its options.

    `missing` finds the command, and the jars in the directory `CIEL_JARS_DIR`.
    """

    def __init__(self, java: str, options: Sequence[str]) -> None:
        self._java = java
        self._options = tuple(options)
        self.jars: tuple[str, ...] = ()

    def missing(self, environ: Mapping[str, str]) -> str:
        """Return why Java cannot be started on this host; empty if it can be."""
        found = _find(self._java, environ)
        if found is None:
            return f"there is no {self._java!r} on this host: {INSTALL}"
        self._java = found
        named = environ.get("CIEL_JARS_DIR")
        if named:
            directory = Path(named)
            if not directory.is_dir():
                return f"CIEL_JARS_DIR names {named}, but this directory does not exist"
            self.jars = tuple([str(path) for path in sorted(directory.glob("*.jar"))])
        return ""

    def compiles(self, environ: Mapping[str, str]) -> bool:
        """Whether this Java can run a source file."""
        return _find("javac", environ) is not None

    def command(self, class_path: Sequence[str], memory_bytes: int) -> list[str]:
        """Return the first words of a command line.

        `memory_bytes`: the memory limit of the task, 0 for none. It also limits the heap, which
        would otherwise outgrow it.
        """
        limits = [f"-Xmx{max(memory_bytes * 3 // 4 >> 20, 2)}M"] if memory_bytes else []
        return [self._java, *self._options, *limits, "-cp", ":".join(class_path)]


def text_list(name: str, value: object) -> tuple[str, ...]:
    """Check an option of the configuration that must be a list of strings; raises TypeError."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name!r} must be a list of strings")
    return tuple(value)


def _find(program: str, environ: Mapping[str, str]) -> str | None:
    home = environ.get("JAVA_HOME")
    if home and "/" not in program and (found := shutil.which(program, path=f"{home}/bin")):
        return found
    return shutil.which(program, path=environ.get("PATH"))
