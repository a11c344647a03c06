"""`ciel submit`: one ordinary program, or an array of them, as a job."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from ciel.cli.options import (
    add_cluster_options,
    add_own_cluster_options,
    connect,
    connect_or_start,
    count,
    make_parser,
    seconds,
)
from ciel.cli.outcome import OF_JOB_STATE, Status, UsageError, cancelling, say
from ciel.cli.printing import Counts, Progress, print_json, print_text, write_output
from ciel.client.client import Client
from ciel.client.errors import JobEndedError, TaskFailedError
from ciel.client.jobs import Job
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, JobSummary
from ciel.core.refs import Failure, Future, Reference, Value
from ciel.core.tasks import RETRIES_MAX, SLOTS_MAX, Needs, TaskState

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?(?::(\d{1,18}))?")
_PLACE = re.compile(r"\{#?\}")
ELEMENTS_MAX = 10_000_000
_STORIES_MAX = 20
_JSON_OUTPUT_MAX_BYTES = 64 << 10

_EPILOG = """\
PROGRAM with a slash is a path from here; otherwise it is sought in the worker's PATH. There is no
shell. In an array, {} in an argument becomes the element and {#} its number; CIEL_ELEMENT and
CIEL_INDEX carry them too. Output is printed in the order of the array. The exit status is 0 only if
that of every element was.

  ciel submit -- sort words.txt
  ciel submit --array 1-10 -- seq {}
  ls *.log | ciel submit --each-line - -- grep -c error {}
"""


class Element(NamedTuple):
    """One run of the program; `text` is None where there is no array."""

    number: int
    text: str | None


def main(prog: str, words: Sequence[str]) -> int:
    """Submit, and unless detached wait and print."""
    args = _parse(words)
    elements = _elements(args)
    argv = _program(args.program)
    env = _environment(args.env, os.environ)
    files = _files(args.inputs)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    name = args.name or os.path.basename(argv[0])
    client = connect(args, "ciel submit") if args.detach else connect_or_start(args, "ciel submit")
    with closing(client):
        sent = {name: client.upload(path) for name, path in files.items()}
        job = client.job(name[:JOB_NAME_MAX_LENGTH], detached=args.detach)
        with cancelling(client, job):
            if args.detach:
                _submit(job, argv, elements, sent, env, args)
                return _tell_detached(client, job, args)
            return _follow(client, job, args, argv, elements, sent, env)


def _follow(
    client: Client,
    job: Job,
    args: argparse.Namespace,
    argv: Sequence[str],
    elements: Sequence[Element],
    sent: Mapping[str, Reference],
    env: Mapping[str, str],
) -> int:
    """Submit and print the results as they come, then what failed."""
    failed: list[tuple[Element, Failure]] = []

    def counts() -> Counts:
        return _counts(job, len(elements))

    with Progress(job.name, counts, quiet=args.quiet) as progress:
        refs = _submit(job, argv, elements, sent, env, args)
        for element, ref in zip(elements, job.results(refs), strict=True):
            if isinstance(ref, Failure):
                failed.append((element, ref))
            progress.aside(lambda e=element, r=ref: _put(client, e, r, args))  # type: ignore[misc]  # defaults bind now
        summary = job.wait()
    if OF_JOB_STATE[summary.state] == Status.CANCELLED:
        raise JobEndedError(summary.number, summary.state, summary.reason)
    _list_failures(client, failed, len(elements), args)
    if args.json:
        print_json({"job": summary_json(summary)})
    return Status.FAILED if failed else OF_JOB_STATE[summary.state]


def _submit(
    job: Job,
    argv: Sequence[str],
    elements: Sequence[Element],
    files: Mapping[str, Reference],
    env: Mapping[str, str],
    args: argparse.Namespace,
) -> list[Future]:
    needs = Needs(slots=args.slots, timeout_s=args.timeout, retries=args.retries)
    refs = []
    for element in elements:
        line, own = list(argv), dict(env)
        if element.text is not None:
            line[1:] = [substitute(word, element) for word in argv[1:]]
            own |= {"CIEL_INDEX": str(element.number), "CIEL_ELEMENT": element.text}
        ref = job.run(line, files=files, env=own, needs=needs)
        job.want((ref,))
        refs.append(ref)
    job.close()
    return refs


def substitute(word: str, element: Element) -> str:
    """Put an element into an argument; what it brings along is not looked at again."""
    return _PLACE.sub(
        lambda match: str(element.number) if match[0] == "{#}" else element.text or "", word
    )


# --- the command line -----------------------------------------------------------------------------


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("ciel submit", "Run one program, or an array of them, as a job.", _EPILOG)
    parser.usage = "ciel submit [OPTION…] -- PROGRAM [ARG…]"
    array = parser.add_mutually_exclusive_group()
    array.add_argument(
        "--array", metavar="A-B", type=number_range, help="one run for each number (A-B:STEP too)"
    )
    array.add_argument(
        "--each-line", metavar="FILE", help="one run for each line (- is standard input)"
    )
    parser.add_argument(
        "--in", dest="inputs", metavar="FILE", action="append", default=[], type=Path,
        help="send a file along, into the directory where the program runs (repeat)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write outputs to DIR/N instead of printing them"
    )
    parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[],
        help="set a variable; NAME alone takes ours (repeat)",
    )  # fmt: skip
    parser.add_argument("--name", metavar="TEXT", help="what to call the job")
    parser.add_argument("--slots", type=_slots, default=1, help="slots of each run (default 1)")
    parser.add_argument(
        "--timeout", type=seconds, default=0.0, metavar="TIME", help="end a run after 90s, 10m, 2h"
    )
    parser.add_argument(
        "--retries", type=_retries, default=0, metavar="N", help="run a failed one again"
    )
    parser.add_argument("--detach", action="store_true", help="leave the job running")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_own_cluster_options(parser)
    add_cluster_options(parser)
    parser.add_argument("program", nargs="*", metavar="PROGRAM [ARG…]")
    args = parser.parse_args(words)
    if not args.program:
        parser.error("no program; write it after --, as in: ciel submit -- sort words.txt")
    if args.detach and args.out is not None:
        parser.error("--out needs somebody who waits for the outputs; leave --detach away")
    return args


def number_range(text: str) -> range:
    """Read `A-B`, `A` or `A-B:STEP`, both ends included (an argparse type)."""
    match = _RANGE.fullmatch(text)
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else -1
    step = int(match[3] or 1) if match else 1
    if match is None or last < first or step < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not A-B, with A up to B")
    return range(first, last + 1, step)


def _slots(text: str) -> int:
    return _at_most(count(text), SLOTS_MAX)


def _retries(text: str) -> int:
    return 0 if text == "0" else _at_most(count(text), RETRIES_MAX)


def _at_most(number: int, limit: int) -> int:
    if number > limit:
        raise argparse.ArgumentTypeError(f"{number} is more than {limit}")
    return number


def _elements(args: argparse.Namespace) -> list[Element]:
    if args.array is not None:
        if len(args.array) > ELEMENTS_MAX:
            raise UsageError(f"an array of {len(args.array)} elements; {ELEMENTS_MAX} are allowed")
        return [Element(number, str(number)) for number in args.array]
    if args.each_line is not None:
        return [Element(number, line) for number, line in enumerate(_lines(args.each_line), 1)]
    return [Element(1, None)]


def _lines(name: str) -> Iterator[str]:
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()  # the end of the last line, no line of its own
    for number, line in enumerate(lines, 1):
        try:
            text = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise UsageError(f"{name} line {number} is not UTF-8") from None
        if "\0" in text:
            raise UsageError(f"{name} line {number} holds a zero byte")
        yield text


def _program(words: Sequence[str]) -> list[str]:
    for number, word in enumerate(words):
        if not word.isascii() and any("\ud800" <= character <= "\udfff" for character in word):
            raise UsageError(f"argument {number} of the program is not UTF-8")
    program, *arguments = words
    if not program:
        raise UsageError("the program's name is empty")
    return [os.path.abspath(program) if "/" in program else program, *arguments]


def _environment(assignments: Sequence[str], ours: Mapping[str, str]) -> dict[str, str]:
    env = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name:
            raise UsageError(f"--env {assignment}: expected NAME=VALUE")
        if not equals and name not in ours:
            raise UsageError(f"--env {name}: there is no such variable here")
        env[name] = value if equals else ours[name]
    return env


def _files(paths: Sequence[Path]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            reason = "is no regular file" if path.exists() else "there is no such file"
            raise UsageError(f"--in {path}: {reason}")
        if path.name in files:
            raise UsageError(f"--in {path}: {files[path.name]} has the same name")
        files[path.name] = path
    return files


# --- results --------------------------------------------------------------------------------------


def _counts(job: Job, total: int) -> Counts:
    running = job.summary.counts.get(str(TaskState.ASSIGNED), 0) if job.summary else 0
    failed = job.failed_count
    done = job.settled_count - failed
    return Counts(done, min(running, total - done - failed), failed, total)


def _put(client: Client, element: Element, ref: Reference, args: argparse.Namespace) -> None:
    """Print one result, or write it where `--out` says; a failure is told of at the end."""
    if args.json:
        _print_element(client, element, ref, args.out)
    elif isinstance(ref, Failure):
        return
    elif args.out is not None:
        _write_file(client, ref, args.out / str(element.number))
    else:
        for chunk in client.read_chunks(ref):
            write_output(chunk)


def _write_file(client: Client, ref: Reference, path: Path) -> None:
    """Write an output; it has its name only when it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(client.read_chunks(ref))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _print_element(client: Client, element: Element, ref: Reference, out: Path | None) -> None:
    """Print one result as a line of JSON, with its output if that is short."""
    line: dict[str, Any] = {"number": element.number, "element": element.text, "object": ref.id}
    if isinstance(ref, Failure):
        line |= {"state": "failed", "reason": ref.reason, "story": ref.details}
    else:
        size_bytes = (
            len(ref.content) if isinstance(ref, Value) else getattr(ref, "size_bytes", None)
        )
        line |= {"state": "done", "size_bytes": size_bytes}
        if out is not None:
            _write_file(client, ref, out / str(element.number))
            line["file"] = str(out / str(element.number))
        elif size_bytes is not None and size_bytes <= _JSON_OUTPUT_MAX_BYTES:
            line["output"] = client.read(ref).decode(errors="backslashreplace")
    print_json(line)


def _list_failures(
    client: Client,
    failed: Sequence[tuple[Element, Failure]],
    total: int,
    args: argparse.Namespace,
) -> None:
    if not failed or args.json:
        return
    if total > 1:
        say(f"{len(failed)} of {total} elements failed:")
    for element, failure in failed[:_STORIES_MAX]:
        who = "" if element.text is None else f"element {element.number} ({element.text}): "
        say(f"{who}{TaskFailedError(failure)}")
    if len(failed) > _STORIES_MAX:
        say(f"and {len(failed) - _STORIES_MAX} more; --json tells of all")
    if client.cluster is not None:
        say(f"logs, and what the failed left behind: {client.cluster.directory}")


def _tell_detached(client: Client, job: Job, args: argparse.Namespace) -> int:
    """Make sure that the master has all of it, and say how to ask for it."""
    from ciel.wire.descriptors import read_summary

    summary = read_summary(client.ask("job", {"job": job.id})["summary"])
    if args.json:
        print_json({"job": summary_json(summary)})
    else:
        print_text(str(summary.number))
        say(f"the job goes on; ciel job wait {summary.number}")
    return Status.DONE


def summary_json(summary: JobSummary) -> dict[str, Any]:
    """Return a job's summary as an object."""
    fields = summary._asdict()
    # Both are of the master's monotonic clock, which says nothing elsewhere.
    ended_at_s, created_at_s = fields.pop("ended_at_s"), fields.pop("created_at_s")
    return fields | {"elapsed_s": None if ended_at_s is None else ended_at_s - created_at_s}
