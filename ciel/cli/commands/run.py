"""`ciel run`: runs a package file as a job, and prints its result as JSON."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from ciel.cli.connection import connect_or_start
from ciel.cli.outcome import Status, UsageError, cancelling, say
from ciel.cli.output.files import make_directory
from ciel.cli.output.printing import print_json
from ciel.cli.output.progress import Progress
from ciel.cli.parsing.options import (
    add_cluster_options,
    add_own_cluster_options,
    make_parser,
    warn_of_late_options,
)
from ciel.client.client import Client
from ciel.client.errors import PackageError, TaskFailedError, TemplateError
from ciel.client.jobs import Job
from ciel.client.packages.entries import (
    Ready,
    Uploaded,
    check_entries,
    fetch,
    open_package,
    require_makers,
    upload,
)
from ciel.client.packages.package_file import Package, PackageFile, parse
from ciel.client.packages.templates import decode_result
from ciel.core.naming import all_references
from ciel.core.refs import Failure, Reference
from ciel.wire import codec
from ciel.wire.errors import RecordTooLargeError
from ciel.wire.references import from_json, to_json

_EPILOG = """\
The arguments after PACKAGE are the values of `__args__` in it, numbered from 0. The result is
printed as JSON: the decoded `result` template if the package has one (`noop` items as strings),
otherwise references.

  ciel run wordcount.pack *.txt
  ciel run --out results render.pack       # `handle` items become results/0, results/1, …
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run a package, wait, and print its result."""
    parser = make_parser("ciel run", "Run a package file and print its result.", _EPILOG)
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="save `handle` items of the result in DIR; the result has their paths",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_own_cluster_options(parser)
    add_cluster_options(parser)
    parser.add_argument("package", metavar="PACKAGE", type=Path)
    # All further arguments belong to the package, even if they look like options of ciel.
    rest = parser.add_argument("words", metavar="ARG", nargs=argparse.REMAINDER)
    rest.required = False  # for argparse, REMAINDER is required
    args = parser.parse_args(words)
    warn_of_late_options(parser, words, str(args.package), args.words)
    file = open_package(args.package)
    package = _parsed(file, args)
    entries = check_entries(file, package.entries)
    if args.out is not None:
        make_directory(args.out)
    for option in package.options.idle:
        say(f"{args.package}: the option {option!r} has no effect here")
    with closing(connect_or_start(args, "ciel run")) as client:
        value = _run(client, package, entries, args)
        print_json(to_json(value))
    return Status.DONE


def _parsed(file: PackageFile, args: argparse.Namespace) -> Package:
    try:
        return parse(file, os.environ, args.words, can_save=args.out is not None)
    except PackageError:
        from ciel.cli.skywriting.source import (
            is_script,
        )  # this imports the interpreter of Skywriting

        if is_script(file.path.name, file.text):
            reason = "is not a package; it looks like a Skywriting script"
            raise UsageError(f"{file.path} {reason}: run it with `sw-job {file.path}`") from None
        raise


def _run(
    client: Client, package: Package, entries: Mapping[str, Ready], args: argparse.Namespace
) -> object:
    require_makers(client, package)
    uploaded = upload(client, entries)
    job = client.job(args.package.name, scheduling=package.options.scheduling)
    with cancelling(client, job), Progress.of_job(job, quiet=args.quiet):
        try:
            uploaded = fetch(client, job, entries, uploaded)
            output = _start(job, package, uploaded)
            job.expect(output)
            listing = from_json(codec.decode(job.read(output)))
            _raise_failures(job, listing)
            save = _Saved(client, job, args.out) if args.out is not None else None
            value = decode_result(package.result, listing, job.read, save)
            _raise_failures(job, value)
        except (TaskFailedError, TemplateError) as error:
            job.close()  # it has failed, was not cancelled, and can be retried
            job.wait()
            if isinstance(error, TemplateError):
                error = TemplateError(f"{args.package}: {error.where}", error.reason)
            raise error from None
        job.close()
        job.wait()
    return value


def _start(job: Job, package: Package, uploaded: Uploaded) -> Reference:
    start_args = package.start_args(uploaded.package)
    try:
        return job.start_package(package.handler, start_args, uploaded.package, uploaded.pieces)
    except RecordTooLargeError as error:
        reason = f"too large for one task: {error}; move a long list into a file of the package"
        raise package.file.error(("start", "args"), reason) from None


def _raise_failures(job: Job, value: object) -> None:
    """Raise TaskFailedError for the first failed reference in a result."""
    for ref in all_references(value):
        if isinstance(ref, Failure):
            job.result(ref)


class _Saved:
    """Saves objects as `DIR/0`, `DIR/1`, …, in the order of the calls."""

    def __init__(self, client: Client, job: Job, directory: Path) -> None:
        self._client = client
        self._job = job
        self._directory = directory
        self._count = 0

    def __call__(self, ref: Reference) -> str:
        path = self._directory / str(self._count)
        self._count += 1

        def write(found: Reference) -> None:
            with path.open("wb") as file:
                for chunk in self._client.read_chunks(found):
                    file.write(chunk)

        self._job.read_by(write, ref)
        return str(path)
