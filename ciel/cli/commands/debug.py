"""`ciel debug`: fetches dumps of the daemons of a cluster, and changes their log level."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from ciel.cli.daemon_requests import ask_daemon
from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client
from ciel.client.data.worker_http import is_remote, text_of

_LEVELS: Final = ("debug", "info", "warn", "error", "critical")
_DUMP: Final = """\
A dump has the stacks of all threads, the state, and the latest messages of a daemon; it contains
arguments and paths of users. A daemon that does not answer writes one on SIGUSR1, and by itself
when its event loop is blocked for a second: to NAME-PID-TIME.dump in the directory of its log.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    return run_verb("ciel debug", "Examines the daemons of a cluster.", VERBS, words)


def _dump(client: Client, args: Namespace) -> int:
    directory = Path(args.out)
    files, failed = [], False
    for name, netloc in _daemons(client, args.worker):
        try:
            content = ask_daemon(client.location, netloc, "POST", "/api/v1/debug/dump")
        except Exception as error:
            if not is_remote(error):
                raise
            say(f"{name} at {netloc} did not return a dump: {text_of(error)}")
            failed = True
            continue
        path = directory / f"{name}-{datetime.now().isoformat().replace(':', '-')}.dump"
        _write(path, content)
        files.append(str(path))
        if not args.json:
            print_text(str(path))
    if args.json:
        print_json({"files": files})
    return Status.FAILED if failed else Status.DONE


def _log_level(client: Client, args: Namespace) -> int:
    body = json.dumps(args.level).encode()
    changed, failed = [], False
    for name, netloc in _daemons(client, args.worker):
        try:
            ask_daemon(client.location, netloc, "POST", "/api/v1/debug/log-level", body)
        except Exception as error:
            if not is_remote(error):
                raise
            say(f"{name} at {netloc} did not change its log level: {text_of(error)}")
            failed = True
        else:
            changed.append(name)
    if args.json:
        print_json({"level": args.level, "changed": changed})
    return Status.FAILED if failed else Status.DONE


def _daemons(client: Client, worker: str | None) -> list[tuple[str, str]]:
    """Return the names and addresses of the selected daemons."""
    workers = [(str(each["worker"]), str(each["netloc"])) for each in client.ask("workers")]
    if worker is None:
        return [("master", client.location.url.removeprefix("http://")), *workers]
    chosen = [each for each in workers if each[0] == worker]
    if not chosen:
        known = ", ".join([name for name, _ in workers]) or "none"
        raise UsageError(f"--worker {worker}: unknown worker; the workers are: {known}")
    return chosen


def _write(path: Path, content: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _add_worker(parser: ArgumentParser) -> None:
    parser.add_argument("--worker", metavar="WORKER", help="only this worker")


def _add_dump(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--out", metavar="DIRECTORY", default=".", help="where to write (default: here)"
    )
    _add_worker(parser)


def _add_log_level(parser: ArgumentParser) -> None:
    parser.add_argument("level", choices=_LEVELS, metavar="LEVEL", help=", ".join(_LEVELS))
    _add_worker(parser)


VERBS = {
    "dump": Verb("fetch a dump of each daemon", _add_dump, _dump, _DUMP),
    "log-level": Verb(
        "change the log level of the daemons until they end", _add_log_level, _log_level
    ),
}
