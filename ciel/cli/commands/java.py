"""`ciel java`: runs a Java class as a job, with the executor `java2`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ciel.cli.connection import connect_or_start
from ciel.cli.outcome import Status, UsageError, cancelling
from ciel.cli.output.printing import print_json
from ciel.cli.output.progress import Progress
from ciel.cli.parsing.options import (
    add_cluster_options,
    add_own_cluster_options,
    make_parser,
    require_text,
    warn_of_late_options,
)
from ciel.cli.parsing.parser import whole_number
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.refs import Failure
from ciel.execution.executor import OUTPUTS_MAX
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.references import from_json

_EPILOG = """\
CLASS is in JAR, and uses the SDK for Java, which the workers have (docs/java.md), or was written
for the original. The outputs of the first task are printed one after the other, unchanged; with
--json as a list, each as a JSON value or as a string.

  ciel java pi.jar com.example.Pi 1000
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run a class, wait, and print its outputs."""
    parser = make_parser("ciel java", "Run a Java class as a job.", _EPILOG)
    parser.add_argument(
        "-j", "--extra-jar", metavar="FILE", action="append", default=[], type=Path,
        help="send another jar (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "-L", "--jar-lib", metavar="DIR", type=Path,
        help="send every jar in this directory (default: CIEL_JARS_DIR, if set)",
    )  # fmt: skip
    parser.add_argument(
        "-P", "--package", metavar="KEY=FILE", action="append", default=[],
        help="send a file that the program looks up by its key (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--num-outputs", type=whole_number(1, OUTPUTS_MAX), default=1, metavar="N",
        help="how many outputs the first task has (default 1)",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_own_cluster_options(parser)
    add_cluster_options(parser)
    parser.add_argument("jar", metavar="JAR", type=Path)
    parser.add_argument("class_name", metavar="CLASS")
    # All further arguments belong to the program, even if they look like options of ciel.
    rest = parser.add_argument("words", metavar="ARG", nargs=argparse.REMAINDER)
    rest.required = False  # for argparse, REMAINDER is required
    args = parser.parse_args(words)
    warn_of_late_options(parser, words, args.class_name, args.words)
    for number, word in enumerate((args.class_name, *args.words)):
        require_text(f"argument {number} of the program" if number else "CLASS", word)
    jars = _jars(args)
    files = dict(_package(args.package))
    with closing(connect_or_start(args, "ciel java")) as client:
        job = client.job(args.class_name.rpartition(".")[2])
        with cancelling(client, job), Progress.of_job(job, quiet=args.quiet):
            contents = [*_run(client, job, jars, files, args)]
    if args.json:
        print_json([_value(content) for content in contents])
    else:
        sys.stdout.buffer.writelines(contents)
        sys.stdout.flush()
    return Status.DONE


def _run(
    client: Client, job: Job, jars: Sequence[Path], files: dict[str, Path], args: argparse.Namespace
) -> Iterator[bytes]:
    start_args: dict[str, Any] = {
        "jar_lib": [client.upload(jar) for jar in jars],
        "class_name": args.class_name,
        "args": args.words,
        "n_outputs": args.num_outputs,
    }
    package = {key: client.upload(path) for key, path in files.items()}
    output = job.start_package("java2", start_args, package)
    job.expect(output)
    for ref in from_json(codec.decode(job.read(output))):
        if isinstance(ref, Failure):
            job.result(ref)  # raises TaskFailedError
        yield job.read(ref)
    job.close()
    job.wait()


def _jars(args: argparse.Namespace) -> list[Path]:
    """Return the jars to send: JAR, then the libraries that it needs."""
    directory = args.jar_lib
    if directory is None and (named := os.environ.get("CIEL_JARS_DIR")):
        directory = Path(named)
    jars = [args.jar, *args.extra_jar]
    if directory is not None:
        if not directory.is_dir():
            origin = "CIEL_JARS_DIR" if args.jar_lib is None else "--jar-lib"
            raise UsageError(f"{origin} {directory}: the directory does not exist")
        jars += sorted(directory.glob("*.jar"))
    for jar in jars:
        _require_file("JAR" if jar is args.jar else "a jar", jar)
    return jars


def _package(given: Sequence[str]) -> Iterator[tuple[str, Path]]:
    for assignment in given:
        key, equals, path = assignment.partition("=")
        if not equals or not key:
            raise UsageError(f"--package {assignment}: expected KEY=FILE")
        require_text("--package: a key", key)
        _require_file(f"--package {key}", Path(path))
        yield key, Path(path)


def _require_file(what: str, path: Path) -> None:
    if not path.is_file():
        reason = "it is not a regular file" if path.exists() else "the file does not exist"
        raise UsageError(f"{what}: {path}: {reason}")


def _value(content: bytes) -> Any:
    try:
        return codec.decode(content)
    except WireError:
        return content.decode("utf-8", "backslashreplace")
