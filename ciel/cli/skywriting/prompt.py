"""The prompt of `ciel sw`: runs each entry as a task of one open job.

An entry starts with the variables of the last entry that succeeded.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ciel.access.paths import state_directory
from ciel.cli.outcome import Status, UsageError, cancelling, say
from ciel.cli.output.printing import print_text
from ciel.cli.output.progress import Counts, Progress
from ciel.cli.skywriting.entries import Entries, PipedEntries, TypedEntries, word_in
from ciel.cli.skywriting.script import print_value, surrounded
from ciel.cli.skywriting.source import errors_of, print_problem
from ciel.client.client import Client
from ciel.client.data.logs import LogReader
from ciel.client.errors import LogUnreadableError, TaskFailedError
from ciel.client.jobs import Job
from ciel.client.jobs.scripts import Scripts
from ciel.core.refs import Reference
from ciel.skywriting.continuation import frame_names
from ciel.skywriting.errors import Source
from ciel.wire import codec

_HISTORY: Final = "sw-history"
_NOTHING: Final = b"null"
_STDIN_FD: Final = 0
_HELP: Final = """\
Each entry is a piece of Skywriting, and can use the variables of earlier entries:
  x = spawn(lambda: 6 * 7)     creates a task; x is a reference to its value
  *x                           waits for the value
  include "stdinout"           defines stdinout(inputs, command), which runs a program
  package("KEY")               the file that `ciel sw -p KEY FILE` has sent
An entry continues while brackets are open. A blank line ends it, Ctrl-C cancels it.
Ctrl-D, exit or quit leaves the prompt. docs/skywriting has a tutorial and a reference."""


def run_prompt(args: argparse.Namespace) -> int:
    """Run entries until their end; return the exit status."""
    if args.detach:
        raise UsageError("a prompt cannot be detached; name a script, or omit --detach")
    is_typed = os.isatty(_STDIN_FD) and sys.stdout.isatty()
    with surrounded(args, "ciel sw", args.name or "prompt") as (client, job, surroundings):
        entries: Entries
        if is_typed:
            where = f"Skywriting at {client.location.url}"
            say(f"{where}; Ctrl-C cancels an entry, Ctrl-D leaves, help lists the rest")
            entries = TypedEntries(state_directory(os.environ) / _HISTORY)
        else:
            entries = PipedEntries(_STDIN_FD)
        prompt = _Prompt(client, job, Scripts(client, job, surroundings), quiet=args.quiet)
        with cancelling(client, job):
            for entry in entries:
                word = word_in(entry) if is_typed else ""
                if word and not prompt.has(word):
                    if word != "help":
                        break
                    print_text(_HELP)
                    continue
                try:
                    prompt.run(entry)
                except KeyboardInterrupt:
                    if not is_typed:
                        raise
                    say(f"{entry.name} is cancelled")
            prompt.leave()
    return Status.FAILED if prompt.has_failed and not is_typed else Status.DONE


class _Prompt:
    """Runs entries one after the other, and prints their values."""

    def __init__(self, client: Client, job: Job, scripts: Scripts, *, quiet: bool) -> None:
        self._client = client
        self._job = job
        self._scripts = scripts
        self._quiet = quiet
        self._session: Reference | None = None
        self._logs: dict[str, LogReader] = {}
        self.has_failed = False

    def has(self, name: str) -> bool:
        """Whether earlier entries have set a variable of this name."""
        if self._session is None:
            return False
        return name in frame_names(codec.decode(self._job.read(self._session)))

    def run(self, entry: Source) -> None:
        """Run an entry, and print its value or its error."""
        errors = errors_of(entry)
        if errors:
            for problem in errors:
                print_problem(problem)
            self.has_failed = True
            return
        value, left = self._scripts.add_entry(entry.text.encode(), entry.name, self._session)
        done: list[Reference] = [value, left]
        try:
            self._job.want(done)
            counts = self._counts()
            with Progress(entry.name, counts, quiet=self._quiet, has_summary=False):
                content = self._job.read(value)
                session = self._job.result(left)
            if self._session is not None:
                done.append(self._session)
            done.remove(left)
            self._session = session
            self._show_log(entry.name)
            if content.strip() != _NOTHING:
                print_value(content)
        except TaskFailedError as error:
            self._show_log(entry.name)
            say(str(error))
            self.has_failed = True
        finally:
            self._job.release(done)

    def leave(self) -> None:
        """Release the variables, and wait for the end of the job."""
        if self._session is not None:
            self._job.release([self._session])
        self._job.close()
        self._job.wait()

    def _counts(self) -> Callable[[], Counts]:
        """Return a function that counts the tasks that are created from now on."""
        before = dict(self._job.summary.counts) if self._job.summary else {}

        def counts() -> Counts:
            now = self._job.summary.counts if self._job.summary else {}
            return Counts.of_states({state: n - before.get(state, 0) for state, n in now.items()})

        return counts

    def _show_log(self, entry: str) -> None:
        """Print what scripts have logged since the last call, without the name of the entry."""
        for reader in self._client.log_readers(self._job.id):
            reader = self._logs.setdefault(reader.netloc, reader)
            with suppress(LogUnreadableError):  # the worker with this log is lost
                while content := reader.read():
                    for line in content.decode(errors="backslashreplace").splitlines():
                        print(line.removeprefix(f"[{entry}] "), file=sys.stderr)
        sys.stderr.flush()
