"""`ciel run`: a package file as a job; its result as JSON."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ciel.cli.options import (
    add_cluster_options,
    add_own_cluster_options,
    connect_or_start,
    make_parser,
)
from ciel.cli.outcome import Status, UsageError, cancelling, say
from ciel.cli.printing import Progress, print_json
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.client.packages import FileEntry, Package, decode_result, parse
from ciel.core.naming import all_references
from ciel.core.refs import Failure, Reference, Value
from ciel.wire import codec
from ciel.wire.references import from_json, to_json

_EPILOG = """\
The words after PACKAGE are what `__args__` in it counts from 0. The result is printed as JSON:
with a `result` template what that decodes (`noop` items as text), else references.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run a package, wait, and print its result."""
    parser = make_parser("ciel run", "Run a package file and print its result.", _EPILOG)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_own_cluster_options(parser)
    add_cluster_options(parser)
    parser.add_argument("package", metavar="PACKAGE", type=Path)
    # What follows is the package's own, even where it looks like an option of ours.
    parser.add_argument("words", metavar="ARG", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    package = _read(args.package, args.words)
    for option in package.options:
        say(f"{args.package}: the option {option!r} has no effect here")
    with closing(connect_or_start(args, "ciel run")) as client:
        references = {key: _bring(client, entry) for key, entry in package.entries.items()}
        job = client.job(args.package.name)
        with cancelling(client, job), Progress.of_job(job, quiet=args.quiet):
            value = _run(job, package, references)
        print_json(to_json(value))
    return Status.DONE


def _read(path: Path, words: Sequence[str]) -> Package:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    package = parse(text, path, os.environ, words)
    for key, entry in package.entries.items():
        if isinstance(entry, FileEntry) and not entry.path.is_file():
            raise UsageError(f"{path}: package.{key}: there is no file {entry.path}")
    return package


def _bring(client: Client, entry: FileEntry | Reference) -> Reference:
    return client.upload(entry.path) if isinstance(entry, FileEntry) else entry


def _run(job: Job, package: Package, references: dict[str, Reference]) -> object:
    def fetch(ref: Reference) -> bytes:
        return ref.content if isinstance(ref, Value) else job.read(ref)

    output = job.start_package(package.handler, package.start_args(references), references)
    listing = from_json(codec.decode(job.read(output)))
    value = decode_result(package.result, listing, fetch)
    for ref in all_references(value):
        if isinstance(ref, Failure):
            job.result(ref)  # raises its story: a job with an error among its results has failed
    job.close()
    job.wait()
    return value
