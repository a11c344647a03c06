"""Runs a Skywriting script as a job, and prints its value as JSON: `sw-job`, `ciel sw SCRIPT`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ciel.cli.connection import connect, connect_or_start
from ciel.cli.jobs.detached import report_detached
from ciel.cli.outcome import OF_JOB_STATE, UsageError, cancelling
from ciel.cli.output.printing import print_json, write_output
from ciel.cli.output.progress import Progress
from ciel.cli.parsing.options import (
    add_cluster_options,
    add_own_cluster_options,
    assignments,
    make_parser,
    require_text,
    warn_of_late_options,
)
from ciel.cli.parsing.parser import Parser
from ciel.cli.skywriting.source import STANDARD_INPUT, read_source, require_valid
from ciel.client.client import Client
from ciel.client.errors import TaskFailedError
from ciel.client.jobs import Job
from ciel.client.jobs.scripts import Scripts, Surroundings
from ciel.core.errors import CielError
from ciel.core.naming import all_references
from ciel.core.refs import Failure
from ciel.execution.environment import inherited
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.references import from_json

if TYPE_CHECKING:
    from ciel.client.packages.entries import Ready

_EPILOG = """\
SCRIPT is a file, or - for standard input. Options stand before it; all arguments after it are
`argv` in the script. `env` in the script contains only the variables of -E and -e. The script
prints to the log of the job, which -v shows. Its value is printed as JSON.

  sw-job -E K=8 kmeans.sw                  # also sends the files of kmeans.pack, if it exists
  sw-job -p words corpus.txt count.sw 16
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Parse the command line, and run the script; return the exit status."""
    args = parse(prog, words)
    return run_script(args, prog, *args.script)


def parse(prog: str, words: Sequence[str], *, needs_script: bool = True) -> argparse.Namespace:
    """Parse the options of a command that runs scripts.

    In the result, `script` is a list of the script and its arguments; None if no script is named,
    which `needs_script` forbids.
    """
    parser = _parser(prog, needs_script)
    args: argparse.Namespace
    args, unknown = parser.parse_known_args(words)
    if unknown not in ([], ["--"]):
        parser.reject(unknown)
    if args.script and args.script[0] == "--":  # the end of the options
        del args.script[0]
    if needs_script and not args.script:
        taken = f"; -p took {' and '.join(args.package[-1])}" if args.package else ""
        parser.error(f"a SCRIPT is required{taken}")
    if args.script:
        warn_of_late_options(parser, words, args.script[0], args.script[1:])
    return args


def _parser(prog: str, needs_script: bool) -> Parser:
    parser = make_parser(prog, "Run a Skywriting script and print its value.", _EPILOG)
    parser.usage = f"{prog} [OPTION…] {'SCRIPT' if needs_script else '[SCRIPT]'} [ARG…]"
    parser.add_argument(
        "-E", dest="variables", metavar="NAME=VALUE", action="append", default=[],
        help="add a variable to `env`; NAME alone copies the current value (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "-e", "--env", action="store_true",
        help="add the current environment to `env`, without secrets",
    )  # fmt: skip
    parser.add_argument(
        "-p", "--package-file", dest="package", nargs=2, metavar=("KEY", "FILE"), action="append",
        default=[], help="send a file; package(KEY) in the script returns it (repeatable)",
    )  # fmt: skip
    parser.add_argument("-i", "--id", "--name", dest="name", help="the name of the job")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the job's log")
    parser.add_argument("--detach", action="store_true", help="leave the job running")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_own_cluster_options(parser)
    add_cluster_options(parser)
    script = parser.add_argument("script", metavar="SCRIPT", nargs=argparse.PARSER)
    script.required = False  # `parse` reports it with a better message
    return parser


def run_script(args: argparse.Namespace, prog: str, script: str, *argv: str) -> int:
    """Run a script, wait, and print its value."""
    source = read_source(script)
    require_valid(source)
    name = args.name or os.path.basename(source.name)
    entries = _package_entries(script, given={key for key, _ in args.package})
    with surrounded(args, prog, name, argv, entries) as (client, job, surroundings):
        output = Scripts(client, job, surroundings).add(source.text.encode(), source.name)
        job.want((output,))
        job.close()
        if args.detach:
            return report_detached(client, job, args.json)
        with cancelling(client, job), Progress.of_job(job, quiet=args.quiet) as progress:
            if args.verbose:
                follow_log(client, job, progress.aside)
            content = job.read(output)
            status = OF_JOB_STATE[job.wait().state]
        print_value(content)
    return status


@contextmanager
def surrounded(
    args: argparse.Namespace,
    prog: str,
    name: str,
    argv: Sequence[str] = (),
    entries: Mapping[str, Ready] | None = None,
) -> Iterator[tuple[Client, Job, Surroundings]]:
    """Connect to a cluster or start one, upload `entries` and the files of -p, and start a job."""
    env = variables(args.variables, os.environ, whole=args.env)
    for number, word in enumerate(argv, 1):
        require_text(f"argument {number}", word)
    require_text("--name", name)
    entries = {**(entries or {}), **_package_files(args.package)}
    with closing((connect if args.detach else connect_or_start)(args, prog)) as client:
        if not entries:
            job = client.job(name, detached=args.detach)
            yield client, job, Surroundings(env, argv)
            return
        from ciel.client.packages.entries import fetch, upload

        uploaded = upload(client, entries)
        job = client.job(name, detached=args.detach)
        with cancelling(client, job):
            uploaded = fetch(client, job, entries, uploaded)
        yield client, job, Surroundings(env, argv, uploaded.package, uploaded.pieces)


def variables(given: Sequence[str], current: Mapping[str, str], *, whole: bool) -> dict[str, str]:
    """Return the variables of `env` in a script.

    They are the `given` ones; with `whole` also all variables of the current environment, except
    secrets and variables that are not valid UTF-8.
    """
    found = assignments("-E", given, current)
    if not whole:
        return found
    sent = inherited(current).items()
    return {name: text for name, text in sent if _is_text(name + text)} | found


def _is_text(text: str) -> bool:
    try:
        require_text("", text)
    except UsageError:
        return False
    return True


def _package_files(given: Sequence[Sequence[str]]) -> dict[str, Ready]:
    if not given:
        return {}
    from ciel.client.packages.specs import WholeFile

    files: dict[str, WholeFile] = {}
    for key, name in given:
        path = Path(name)
        require_text("-p: a key", key)
        if key in files:
            raise UsageError(f"-p {key} {name}: {files[key].path} has the same key")
        if not path.is_file():
            reason = "it is not a regular file" if path.exists() else "the file does not exist"
            raise UsageError(f"-p {key} {name}: {reason}")
        files[key] = WholeFile(path)
    return dict(files)


def _package_entries(script: str, given: set[str]) -> dict[str, Ready]:
    """Return the entries of the package file with the name of the script, without keys in `given`.

    So a script needs no options for its files. Raises PackageError.
    """
    path = Path(script).with_suffix(".pack")
    if script == STANDARD_INPUT or path == Path(script) or not path.is_file():
        return {}
    from ciel.client.packages.entries import check_entries, open_package  # few scripts have one
    from ciel.client.packages.package_file import parse_entries

    package = open_package(path)
    entries = parse_entries(package, os.environ)
    return check_entries(
        package, {key: entry for key, entry in entries.items() if key not in given}
    )


def follow_log(client: Client, job: Job, aside: Callable[[Callable[[], None]], None]) -> None:
    """Show the log of a job on standard error until the job has ended."""
    from ciel.cli.jobs.log import follow  # few commands need it

    def show(lines: list[bytes]) -> None:
        text = b"".join(lines).decode(errors="backslashreplace")
        aside(lambda: print(text, end="", file=sys.stderr, flush=True))

    job.wait_until(lambda: job.summary is not None, None, "the job's number")
    assert job.summary is not None
    follow(client, job.summary, show)


def print_value(content: bytes) -> None:
    """Print the value of a script, which is JSON.

    Raises TaskFailedError for a failed reference in it.
    """
    if b'"__ref__"' in content:
        found = []
        with suppress(
            CielError, WireError
        ):  # the value is a dictionary that looks like a reference
            found = all_references(from_json(codec.decode(content)))
        for ref in found:
            if isinstance(ref, Failure):
                raise TaskFailedError(ref)
    try:
        print_json(json.loads(content))
    except (
        ValueError,
        RecursionError,
    ):  # a number of many digits, or deep nesting: print it unchanged
        write_output(content + b"\n")
