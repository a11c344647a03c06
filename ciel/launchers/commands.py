"""The command line of a worker in an allocation, and calls of the programs of a resource manager.

The key of the cluster is never an argument: other users can see the arguments of a process.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from ciel.launchers.interface import LauncherError, LauncherOptionError, Site

CALL_TIMEOUT_S: Final = 30.0
_SHOWN_MAX_LENGTH: Final = 300

WORKER: Final = "ciel-worker"


def worker_command(program: str, site: Site, own: Mapping[str, str]) -> str:
    """Return the command of a worker as a line of shell.

    `own`: options that differ between allocations, with values in the syntax of the shell.
    """
    words = [*shlex.split(program), "--listen", "auto"]
    if site.time_limit_s:
        words += ["--time-limit", f"{site.time_limit_s:g}"]
    words += site.worker_options
    given = set(words)
    options = [f"{name} {value}" for name, value in own.items() if name not in given]
    return " ".join([shlex.join(words), *options])


def check_words(
    words: Sequence[str], forbidden: Mapping[str, str], valued: str, program: str
) -> None:
    """Check the user's words for a program, such as `sbatch`; raises LauncherOptionError.

    `forbidden` maps options to the reason why ciel does not pass them, `valued` has the letters of
    short options that take a value. A word that is neither an option nor its value is refused, if
    it comes first: the program would take it as a script or a host.
    """
    if words and not words[0].startswith("-"):
        raise LauncherOptionError(
            f"{words[0]!a:.80} is not an option of {program}: after -- come only options"
        )
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--") and len(word) > 2 and word[1:2] in valued:
            name = word[:2]
        if word.startswith("-") and name in forbidden:
            raise LauncherOptionError(f"{program} {name}: {forbidden[name]}")


def call(command: Sequence[str], text: str = "", environ: Mapping[str, str] | None = None) -> str:
    """Run a program of a resource manager, and return its output; raises LauncherError."""
    program = command[0]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", env=environ,
            timeout=CALL_TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise LauncherError(
            f"{program} is not installed on this host: start the cluster where it is"
        ) from None
    except subprocess.TimeoutExpired:
        raise LauncherError(f"{program} has not answered within {CALL_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise LauncherError(f"{program}: {error.strerror}") from None
    if done.returncode != 0:
        said = last_line(done.stderr).removeprefix(f"{program}: ").removeprefix("error: ")
        raise LauncherError(f"{program}: {said or f'it ended with status {done.returncode}'}")
    return done.stdout


def last_line(text: str) -> str:
    """Return the last line of a text that is not blank, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_SHOWN_MAX_LENGTH] if lines else ""
