"""`ciel submit`: one ordinary program, or an array of them, as a job."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from ciel.cli.detaching import print_summary, tell_detached
from ciel.cli.elements import Element, Known, Lines, Template
from ciel.cli.options import (
    add_cluster_options,
    add_own_cluster_options,
    assignments,
    connect,
    connect_or_start,
    make_directory,
    make_parser,
    require_text,
    seconds,
)
from ciel.cli.outcome import OF_JOB_STATE, Status, UsageError, cancelling, say
from ciel.cli.outputs import Outputs
from ciel.cli.parser import memory_size, whole_number
from ciel.cli.printing import Counts, Progress
from ciel.client.arrays import Array
from ciel.client.caller import caller_context
from ciel.client.client import Client
from ciel.client.errors import JobEndedError
from ciel.client.jobs import Job
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, CallerContext
from ciel.core.refs import Future, Reference
from ciel.core.scheduling import LOCALITY, POLICIES, read_scheduling
from ciel.core.tasks import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    RETRIES_MAX,
    RETRY_DELAY_MAX_S,
    SLOTS_MAX,
    TIMEOUT_MAX_S,
    Needs,
    TaskState,
)
from ciel.storage.interface import LEVELS

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?(?::(\d{1,18}))?")
ELEMENTS_MAX = 10_000_000
_KINDS = (
    "RUNTIME_EXCEPTION", "TIMED_OUT", "MEMORY_LIMIT", "NO_SPACE", "PROGRAM_NOT_STARTED",
    "WORKER_FAULT",
)  # fmt: skip
"""The failures of an ordinary program that another attempt may mend."""

_EPILOG = """\
PROGRAM runs in this directory, with this environment (docs/where-programs-run.md). With a slash it
is a path from here; otherwise it is sought in PATH. There is no shell. In an array, {} in an
argument becomes the element and {#} its number; CIEL_ELEMENT and CIEL_INDEX carry them too. Lines
run as they come. Output is printed in the order of the array. The exit status is 0 only if that of
every element was. Results of more than 10,000 elements are not kept once they are printed or
written; with --detach they are.

  ciel submit -- sort words.txt
  ciel submit --array 1-10 -- seq {}
  ls *.log | ciel submit --each-line - -- grep -c error {}
"""


Elements = Known | Lines


def main(prog: str, words: Sequence[str]) -> int:
    """Submit, and unless detached wait and print."""
    args = _parse(words)
    files = _files(args.inputs)
    argv = _program(args.program, files)
    env = assignments("--env", args.env, os.environ)
    context = _context(args)
    elements = _elements(args)
    if args.out is not None:
        make_directory(args.out)
    name = args.name or os.path.basename(argv[0])
    client = connect(args, "ciel submit") if args.detach else connect_or_start(args, "ciel submit")
    with closing(client):
        sent = _objects(client, args.objects, files)
        sent |= {name: client.upload(path) for name, path in files.items()}
        job = client.job(
            name[:JOB_NAME_MAX_LENGTH], detached=args.detach, keep=args.keep, store=args.store,
            scheduling=read_scheduling(args.policy), context=context,
        )  # fmt: skip
        with cancelling(client, job):
            run = _adder(job, elements, args, Template(argv), sent, env)
            array = Array(client, job, elements, run, in_order=args.json or args.out is None)
            elements.start(client.wake)
            if args.detach:
                array.submit()
                return tell_detached(client, job, args.json)
            return _follow(client, job, array, elements, args)


def _follow(
    client: Client, job: Job, array: Array[Element], elements: Elements, args: argparse.Namespace
) -> int:
    """Submit and print the results as they come, then what failed."""
    outputs = Outputs(client, job, args)

    def counts() -> Counts:
        return _counts(job, array, elements)

    with Progress(job.name, counts, quiet=args.quiet) as progress:
        for batch in array.results():
            progress.aside(partial(outputs.put, batch))
        summary = job.wait()
    if OF_JOB_STATE[summary.state] == Status.CANCELLED:
        raise JobEndedError(summary.number, summary.state, summary.reason)
    outputs.list_failures(array.submitted)
    if job.notices:
        _tell_of_deleted(job.notices[0].text, args)
    if args.json:
        # The last results may have been handed over after the job's end.
        print_summary(client, summary._replace(handed_over=array.handed_over))
    return Status.FAILED if outputs.failed_count else OF_JOB_STATE[summary.state]


def _adder(
    job: Job,
    elements: Elements,
    args: argparse.Namespace,
    template: Template,
    files: Mapping[str, Reference],
    env: Mapping[str, str],
) -> Callable[[Element], Future]:
    """Return how to add the task of an element."""
    needs = Needs(
        slots=args.slots, memory_bytes=args.memory, priority=args.priority, timeout_s=args.timeout,
        retries=args.retries, retry_on=args.retry_on, retry_delay_s=args.retry_delay,
    )  # fmt: skip

    executables = [path.name for path in args.inputs if os.access(path, os.X_OK)]

    def run(element: Element) -> Future:
        try:
            words, own = template.fill(element)
        except ValueError as error:
            raise UsageError(f"{elements.place(element)} {error}") from None
        return job.run(
            words, files=files, env={**env, **own}, executables=executables, needs=needs,
            name=str(element.number),
        )  # fmt: skip

    return run


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
    _add_surroundings(parser)
    parser.add_argument("--name", metavar="TEXT", help="what to call the job")
    parser.add_argument(
        "--slots", type=whole_number(1, SLOTS_MAX), default=1, metavar="N",
        help="slots of each run (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=memory_size, default=0, metavar="SIZE",
        help="have so much kept free for each run; end one that takes more of its own (512MiB)",
    )  # fmt: skip
    parser.add_argument(
        "--priority", type=_priority, default=0, metavar="N",
        help="runs of a higher one start first, also before those of other jobs (-1000 to 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--policy", choices=POLICIES, default=LOCALITY,
        help="how runs are spread over workers (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="keep all that is made until the job is removed"
    )
    parser.add_argument(
        "--timeout", type=_timeout, default=0.0, metavar="TIME", help="end a run after 90s, 10m, 2h"
    )
    parser.add_argument(
        "--retries", type=whole_number(0, RETRIES_MAX), default=0, metavar="N",
        help="run a failed one again, so often",
    )  # fmt: skip
    parser.add_argument(
        "--retry-on", type=_kinds, default=(), metavar="KIND,…",
        help="only after such failures: " + ", ".join(_KINDS),
    )  # fmt: skip
    parser.add_argument(
        "--retry-delay", type=_retry_delay, default=0.0, metavar="TIME",
        help="before the first time; then twice as long each time, up to 30s",
    )  # fmt: skip
    parser.add_argument(
        "--store", choices=LEVELS, default="",
        help="where outputs begin, on a worker whose store is in memory (default: there)",
    )  # fmt: skip
    parser.add_argument("--detach", action="store_true", help="leave the job running")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_own_cluster_options(parser)
    add_cluster_options(parser)
    parser.add_argument("program", nargs="*", metavar="PROGRAM [ARG…]")
    args: argparse.Namespace = parser.parse_args(words)
    if not args.program:
        parser.error("no program; write it after --, as in: ciel submit -- sort words.txt")
    require_text("--name", args.name or "")
    if args.detach and args.out is not None:
        parser.error("--out needs somebody who waits for the outputs; leave --detach away")
    return args


def _add_surroundings(parser: argparse.ArgumentParser) -> None:
    """Add what says which files and variables a program has, and where its output goes."""
    parser.add_argument(
        "--in", dest="inputs", metavar="FILE", action="append", default=[], type=Path,
        help="send a file along, into a private directory, where the program then runs (repeat)",
    )  # fmt: skip
    parser.add_argument(
        "--object", dest="objects", metavar="NAME=OBJECT", action="append", default=[],
        help="have an object there as a file, see `ciel object` (repeat)",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--cwd", metavar="DIR", type=Path, help="run in this directory instead of the current one"
    )
    where.add_argument(
        "--scratch", action="store_true",
        help="run each in a private directory, which is deleted at its end",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write outputs to DIR/N instead of printing them"
    )
    parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[],
        help="set a variable; NAME alone takes ours (repeat)",
    )  # fmt: skip
    parser.add_argument(
        "--clean-env", action="store_true",
        help="run with the environment of the workers, not with ours",
    )  # fmt: skip


def _priority(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = PRIORITY_MAX + 1
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a number from {PRIORITY_MIN} to {PRIORITY_MAX}"
        )
    return number


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in _KINDS:
            known = ", ".join(_KINDS)
            raise argparse.ArgumentTypeError(f"{kind[:40]!r} is none of the kinds {known}")
    return kinds


def _retry_delay(text: str) -> float:
    delay_s = seconds(text)
    if delay_s > RETRY_DELAY_MAX_S:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a day")
    return delay_s


def number_range(text: str) -> range:
    """Read `A-B`, `A` or `A-B:STEP`, both ends included (an argparse type)."""
    match = _RANGE.fullmatch(text)
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else -1
    step = int(match[3] or 1) if match else 1
    if match is None or last < first or step < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not A-B, whole numbers with A up to B")
    numbers = range(first, last + 1, step)
    if len(numbers) > ELEMENTS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} has {len(numbers):,} elements; {ELEMENTS_MAX:,} are allowed"
        )
    return numbers


def _timeout(text: str) -> float:
    timeout_s = seconds(text)
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be more than 0, and at most {TIMEOUT_MAX_S:.0f}s"
        )
    return timeout_s


def _elements(args: argparse.Namespace) -> Elements:
    if args.array is not None:
        return Known.numbers(args.array)
    if args.each_line is not None:
        return Lines(args.each_line)
    return Known([Element(1, None)], 1)


def _context(args: argparse.Namespace) -> CallerContext:
    """Return where the program runs, and with which environment; raises ContextError."""
    if args.cwd is not None and (args.inputs or args.objects):
        given = "--in" if args.inputs else "--object"
        raise UsageError(f"{given} has the program run where its files are sent: leave --cwd away")
    variables: dict[str, str] | None = {} if args.clean_env else None
    return caller_context(args.cwd, scratch=args.scratch, env=variables)


def _tell_of_deleted(text: str, args: argparse.Namespace) -> None:
    """Tell, in one line, that files which the program made were deleted, and what to do."""
    why = "--scratch" if args.scratch else "--in" if args.inputs else "--object"
    say(f"{text.strip()}; without {why} it runs in this directory, where they stay")


def _program(words: Sequence[str], files: Mapping[str, Path] | None = None) -> list[str]:
    """Return the command line, checked. A program with a slash is a path from here, unless it was
    sent along: then it is run where it lies.
    """
    for number, word in enumerate(words):
        require_text(f"argument {number} of the program", word)
    program, *arguments = words
    if not program:
        raise UsageError("the program's name is empty")
    if "/" not in program:
        return [program, *arguments]
    path = os.path.abspath(program)
    for name, sent in (files or {}).items():
        if path in (os.path.abspath(name), os.path.abspath(sent)):
            return [f"./{name}", *arguments]
    return [path, *arguments]


def _objects(
    client: Client, given: Sequence[str], files: Mapping[str, Path]
) -> dict[str, Reference]:
    """Find what the workers have already, by the names that programs are to see."""
    found: dict[str, Reference] = {}
    for assignment in given:
        from ciel.cli.object import content_of, find_object  # few ask for one

        name, _, text = assignment.partition("=")
        if not (name and text) or "/" in name or name in (".", ".."):
            raise UsageError(f"--object {assignment}: expected NAME=OBJECT, NAME of a file")
        if name in files or name in found:
            raise UsageError(f"--object {assignment}: another file has that name")
        found[name] = content_of(find_object(client, text))
    return found


def _files(paths: Sequence[Path]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            reason = "is no regular file" if path.exists() else "there is no such file"
            raise UsageError(f"--in {path}: {reason}")
        require_text(f"--in {path}: its name", path.name)
        if path.name in files:
            raise UsageError(f"--in {path}: {files[path.name]} has the same name")
        files[path.name] = path
    return files


# --- results --------------------------------------------------------------------------------------


def _counts(job: Job, array: Array[Element], elements: Elements) -> Counts:
    summary = job.summary
    running = summary.counts.get(str(TaskState.ASSIGNED), 0) if summary else 0
    submitted, failed = array.submitted, job.failed_count
    done = job.settled_count - failed
    running = max(0, min(running, submitted - done - failed))
    return Counts(done, running, failed, elements.total or submitted, elements.total is None)
