"""`ciel submit`: one ordinary program, or an array of them, as a job."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from ciel.cli.jobs.detached import print_summary, tell_detached
from ciel.cli.outcome import OF_JOB_STATE, Status, UsageError, cancelling, say
from ciel.cli.output.printing import write_unlocked
from ciel.cli.output.progress import Counts, Progress, RunningCount
from ciel.cli.parsing.options import (
    add_cluster_options,
    add_own_cluster_options,
    assignments,
    connect,
    connect_or_start,
    make_parser,
    require_text,
    seconds,
)
from ciel.cli.parsing.parser import Parser, memory_size, whole_number
from ciel.cli.submission import standard_input
from ciel.cli.submission.collected_files import CollectedFiles, patterns_of
from ciel.cli.submission.elements import (
    Element,
    Known,
    Lines,
    Pieces,
    Template,
    has_place,
    substitute,
)
from ciel.cli.submission.numbers import number_ranges
from ciel.cli.submission.outputs import Outputs
from ciel.cli.submission.result_files import ResultFiles
from ciel.client.arrays import UNSETTLED_MAX, Array
from ciel.client.caller import caller_context
from ciel.client.client import Client
from ciel.client.errors import JobEndedError
from ciel.client.jobs import Job, archive_of
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, CallerContext
from ciel.core.refs import Future, Reference
from ciel.core.scheduling import LOCALITY, POLICIES, read_scheduling
from ciel.core.tasks import (
    KILL_GRACE_MAX_S,
    PRIORITY_MAX,
    PRIORITY_MIN,
    RETRIES_MAX,
    RETRY_DELAY_MAX_S,
    SLOTS_MAX,
    TIMEOUT_MAX_S,
    Needs,
    TaskState,
)
from ciel.execution.report import visible
from ciel.storage.interface import LEVELS

_KINDS = (
    "RUNTIME_EXCEPTION", "TIMED_OUT", "MEMORY_LIMIT", "NO_SPACE", "PROGRAM_NOT_STARTED",
    "WORKER_FAULT",
)  # fmt: skip
"""The failures of an ordinary program that another attempt may mend."""

_BLOCK_BYTES = 1 << 20  # as GNU parallel's
_PIECES_PER_SLOT = 2
"""Of standard input, that are on their way: more would only fill the store."""

_EPILOG = """\
Options stand before PROGRAM; all words after it are its arguments. PROGRAM runs in the current
directory, with the current environment (docs/where-programs-run.md). If its name contains a slash,
it is a path from here; otherwise it is searched for in PATH. No shell is involved. A single program
reads standard input.

In an array, {} in an argument stands for the element, and {#} for its number; CIEL_ELEMENT and
CIEL_INDEX contain the same. Each line starts to run as soon as it is read. Outputs are printed in
the order of the array. The exit status is 0 only if every element exits with 0. The results of
arrays of more than 10,000 elements are deleted once they are printed or written, unless --detach is
given.

  ciel submit sort words.txt
  ciel submit --array 1-10 seq {}
  ls *.log | ciel submit --each-line - grep -c error {}
"""


Elements = Known | Lines | Pieces


def main(prog: str, words: Sequence[str]) -> int:
    """Submit, and unless detached wait and print."""
    args = _parse(words)
    env = assignments("--env", args.env, os.environ)
    is_array = args.is_array
    own, inputs = _split(args.inputs, is_array)
    own_objects, objects = _split(args.objects, is_array)
    files = _files([Path(path) for path in inputs])
    argv = _program(args.program, files)
    context = _context(args)
    elements = _elements(args)
    if is_array and not args.pipe and args.each_line != "-":
        standard_input.tell_unread()
    files_out = ResultFiles(args.out, is_array) if args.out and not args.collect else None
    name = args.name or visible(os.path.basename(argv[0]))
    reach = connect if args.detach else connect_or_start
    client = reach(args, "ciel submit")
    with closing(client):
        sent = _objects(client, objects, files)
        sent |= {name: client.upload(path) for name, path in files.items()}
        own_objects = [_fixed_last(client, assignment) for assignment in own_objects]
        stdin = None if is_array else standard_input.upload(client, visible(args.program[0]))
        job = client.job(
            name[:JOB_NAME_MAX_LENGTH], detached=args.detach, keep=args.keep, store=args.store,
            scheduling=read_scheduling(args.policy), context=context,
        )  # fmt: skip
        template = Template(argv, env)
        with cancelling(client, job):
            run = _adder(
                client, job, elements, args, template, sent, _PerElement(own, own_objects), stdin
            )
            if files_out is not None:
                run = files_out.clearing(run)
            collected = None
            if args.collect:
                collected = CollectedFiles(client, job, args)
                run = collected.clearing(run)
            array = Array(
                client, job, elements, run, in_order=_in_order(args),
                at_once=_at_once(client, args), keeps=not args.pipe,
                beside=archive_of if args.collect else None,
            )  # fmt: skip
            elements.start(client.wake)
            if args.detach:
                array.submit()
                return tell_detached(
                    client, job, args.json, "output --follow" if args.follow else "wait"
                )
            outputs = Outputs(client, job, files_out, args, collected)
            return _follow(client, job, array, elements, template, outputs, args)


def _follow(
    client: Client,
    job: Job,
    array: Array[Element],
    elements: Elements,
    template: Template,
    outputs: Outputs,
    args: argparse.Namespace,
) -> int:
    """Submit and print the results as they come, then what failed."""
    with ExitStack() as stack:
        if args.joblog is not None:
            from ciel.cli.submission.joblog import JobLog  # few ask for one

            outputs.joblog = stack.enter_context(JobLog(args.joblog, client, job, template))
        running = RunningCount(client, args.slots)

        def counts() -> Counts:
            return _counts(job, array, elements, running)

        progress = stack.enter_context(Progress(job.name, counts, quiet=args.quiet))
        following = None
        if args.follow:
            from ciel.cli.output.following import Following  # few ask for it

            following = Following(
                client,
                lambda lines: progress.aside(partial(write_unlocked, lines)),
                lambda: job.cancel("nobody reads its output"),
            )
            job.on_growing = following.begin
            stack.callback(following.raise_error)  # rather than that the job was cancelled for it
        if args.stderr:
            client.show_prints(job, progress, lambda told: told.name if args.is_array else "")
        for batch in array.results():
            if following is not None:
                outputs.printed_bytes = {ref.id: following.finish(ref.id) for _, ref in batch}
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


class _PerElement:
    """The files that each element has for itself: `--in` and `--object` with `{}` in them."""

    def __init__(self, inputs: Sequence[str], objects: Sequence[str]) -> None:
        self._inputs = inputs
        self._objects = objects

    def bring(
        self, client: Client, element: Element, sent: Mapping[str, Reference]
    ) -> Mapping[str, Reference]:
        """Return all files of an element, by name; raises UsageError, and as `Client.upload`."""
        if not (self._inputs or self._objects):
            return sent
        files = _files([Path(substitute(path, element)) for path in self._inputs])
        wanted = [substitute(assignment, element) for assignment in self._objects]
        found = _objects(client, wanted, {**files, **dict.fromkeys(sent, Path())})
        return {**sent, **found, **{name: client.upload(path) for name, path in files.items()}}

    def executables(self, element: Element) -> list[str]:
        """Name those that may be executed."""
        return _executables([substitute(path, element) for path in self._inputs])


def _executables(paths: Sequence[str]) -> list[str]:
    return [os.path.basename(path) for path in paths if os.access(path, os.X_OK)]


def _split(given: Sequence[str], is_array: bool) -> tuple[list[str], list[str]]:
    """Part what has a place for an element from what is the same for all."""
    own = [text for text in given if is_array and has_place(text)]
    return own, [text for text in given if text not in own]


def _fixed_last(client: Client, assignment: str) -> str:
    """Return what `--object` says, with the number of the job that is the last before this one."""
    name, _, text = assignment.partition("=")
    if not text.startswith("last:"):
        return assignment
    number = client.ask("jobs", {"job": "last"})[0][1]
    return f"{name}={number}:{text.removeprefix('last:')}"


def _in_order(args: argparse.Namespace) -> bool:
    return not (args.unordered or args.follow) and (
        args.json or args.out is None or bool(args.collect)
    )


def _at_once(client: Client, args: argparse.Namespace) -> int:
    """Return how many elements may be on their way at a time."""
    given = [args.jobs or 0, args.array.at_once if args.array is not None else 0]
    at_once = min([number for number in given if number], default=UNSETTLED_MAX)
    if args.pipe and not args.detach:
        at_once = min(at_once, max(1, client.slot_count()) * _PIECES_PER_SLOT)
    return at_once


def _adder(
    client: Client,
    job: Job,
    elements: Elements,
    args: argparse.Namespace,
    template: Template,
    sent: Mapping[str, Reference],
    per_element: _PerElement,
    stdin: Reference | None,
) -> Callable[[Element], Future]:
    """Return how to add the task of an element."""
    needs = Needs(
        slots=args.slots, memory_bytes=args.memory, priority=args.priority, timeout_s=args.timeout,
        retries=args.retries, retry_on=args.retry_on, retry_delay_s=args.retry_delay,
        kill_grace_s=args.kill_grace,
    )  # fmt: skip
    inputs = [] if stdin is None else [stdin]
    executables = _executables([path for path in args.inputs if not has_place(path)])

    def run(element: Element) -> Future:
        try:
            words, env = template.fill(element)
        except ValueError as error:
            raise UsageError(f"{elements.place(element)} {error}") from None
        files = per_element.bring(client, element, sent)
        read = inputs
        if element.content is not None:
            read = [client.upload_content(element.content, elements.place(element))]
        return job.run(
            words, inputs=read, files=files, env=env,
            executables=executables + per_element.executables(element), needs=needs,
            name=str(element.number), streams=args.follow,
            collects=patterns_of(args.collect, element),
        )  # fmt: skip

    return run


# --- the command line -----------------------------------------------------------------------------


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("ciel submit", "Run one program, or an array of them, as a job.", _EPILOG)
    parser.usage = "ciel submit [OPTION…] PROGRAM [ARG…]"
    _add_array_options(parser)
    _add_surroundings(parser)
    parser.add_argument("--name", metavar="TEXT", help="the name of the job")
    parser.add_argument(
        "--slots", type=whole_number(1, SLOTS_MAX), default=1, metavar="N",
        help="slots that each run occupies (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=memory_size, default=0, metavar="SIZE",
        help="reserve this memory for each run, and kill a run that uses more (512M, 2G)",
    )  # fmt: skip
    parser.add_argument(
        "--priority", type=_priority, default=0, metavar="N",
        help="runs with a higher priority start first, across all jobs (-1000 to 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--policy", choices=POLICIES, default=LOCALITY,
        help="how the scheduler chooses a worker for a run (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="keep intermediate objects until the job is removed"
    )
    parser.add_argument(
        "--timeout", type=_timeout, default=0.0, metavar="TIME",
        help="kill a run after this time: 90s, 10m, 2h, 01:00:00",
    )  # fmt: skip
    parser.add_argument(
        "--retries", type=whole_number(0, RETRIES_MAX), default=0, metavar="N",
        help="repeat a failed run up to N times",
    )  # fmt: skip
    parser.add_argument(
        "--retry-on", type=_kinds, default=(), metavar="KIND,…",
        help="repeat only after these failures: " + ", ".join(_KINDS),
    )  # fmt: skip
    parser.add_argument(
        "--retry-delay", type=_retry_delay, default=0.0, metavar="TIME",
        help="wait this long before the first retry, twice as long before each next one, up to 30s",
    )  # fmt: skip
    parser.add_argument(
        "--kill-grace", type=_kill_grace, default=-1.0, metavar="TIME",
        help="time between SIGTERM and SIGKILL (default: the worker's --kill-grace, 5s)",
    )  # fmt: skip
    parser.add_argument(
        "--store", choices=LEVELS, default="",
        help="where a worker with a store in memory writes outputs first (default memory)",
    )  # fmt: skip
    parser.add_argument(
        "--detach", action="store_true", help="return at once, and leave the job running"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_own_cluster_options(parser)
    add_cluster_options(parser)
    program = parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="PROGRAM [ARG…]",
        help="the program and its arguments",
    )  # fmt: skip
    program.required = False
    args: argparse.Namespace = parser.parse_args(words)
    if args.program[:1] == ["--"]:
        del args.program[0]
    if not args.program:
        parser.error("no program; write it behind the options, as in: ciel submit sort words.txt")
    args.is_array = args.array is not None or args.each_line is not None or args.pipe
    _check(parser, args)
    return args


def _check(parser: Parser, args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    require_text("--name", args.name or "")
    if args.is_array and has_place(args.name or ""):
        parser.error("--name names the job, which all elements share: leave {} and {#} away")
    if args.collect and args.out is None:
        parser.error("--collect needs to know where the files are to go: add --out DIR")
    if args.null and args.each_line is None:
        parser.error("-0 tells how --each-line is to be read, and there is no --each-line")
    if args.block is not None and not args.pipe:
        parser.error("--block tells how --pipe is to cut, and there is no --pipe")
    limit = args.jobs or (args.array.at_once if args.array is not None else 0)
    if args.follow and not args.detach and (args.out is not None or args.json):
        from ciel.cli.output.following import WHOLE_ONLY  # for this alone

        parser.error(WHOLE_ONLY.format("--json" if args.json else "--out"))
    waiting = {"--out": args.out, "--joblog": args.joblog, "--stderr": args.stderr}
    for option, given in (waiting | {"-j (or %N in --array)": limit}).items():
        if args.detach and given:
            parser.error(f"{option} needs a command that stays with the job; leave --detach away")


def _add_array_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how many runs there are, and how they follow each other."""
    array = parser.add_mutually_exclusive_group()
    array.add_argument(
        "--array", metavar="A-B", type=number_ranges,
        help="one run for each number (A-B:STEP; 1,3,5-9; 001-100; 1-100%%4: four at a time)",
    )  # fmt: skip
    array.add_argument(
        "--each-line", metavar="FILE", help="one run for each line of a file (- is standard input)"
    )
    array.add_argument(
        "--pipe", action="store_true",
        help="split standard input at ends of lines; one run reads each piece",
    )  # fmt: skip
    parser.add_argument(
        "-0",
        "--null",
        action="store_true",
        help="items of --each-line end with NUL instead of a newline",
    )
    # argparse takes -0 for a number, and then no negative number for a value any more.
    parser._has_negative_number_optionals.clear()
    parser.add_argument(
        "--block",
        metavar="SIZE",
        type=memory_size,
        help="size of the pieces of --pipe (default 1M)",
    )
    parser.add_argument(
        "-j", "--jobs", metavar="N", type=whole_number(1, UNSETTLED_MAX),
        help="submit at most N elements at a time",
    )  # fmt: skip
    parser.add_argument(
        "--unordered", action="store_true", help="print results as they arrive, in any order"
    )


def _add_surroundings(parser: argparse.ArgumentParser) -> None:
    """Add what says which files and variables a program has, and where its output goes."""
    parser.add_argument(
        "--in", dest="inputs", metavar="FILE", action="append", default=[],
        help="copy a file into a private directory, and run the program there (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--object", dest="objects", metavar="NAME=OBJECT", action="append", default=[],
        help="the same with an object of the cluster, see `ciel object` (repeatable)",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--cwd", metavar="DIR", type=Path, help="run in this directory instead of the current one"
    )
    where.add_argument(
        "--scratch", action="store_true",
        help="run in a private directory, which is deleted afterwards",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR",
        help="write each output to DIR/N, or to a file name with {} or {#} in it, instead of "
        "printing it; files of an earlier run are removed first",
    )  # fmt: skip
    parser.add_argument(
        "--collect", metavar="NAME", action="append", default=[],
        help="copy a file that the run wrote, or all that match a pattern, into the --out "
        "directory, as DIR/NAME, in an array as DIR/N/NAME (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--joblog", metavar="FILE",
        help="write a line for each finished element: host, start, seconds, status, command",
    )  # fmt: skip
    parser.add_argument(
        "--follow", action="store_true",
        help="print outputs line by line while programs run; with --detach, "
        "`ciel job output --follow` prints them",
    )  # fmt: skip
    parser.add_argument(
        "--stderr", action="store_true",
        help="print standard error line by line while programs run",
    )  # fmt: skip
    parser.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[],
        help="set a variable; NAME alone copies the current value (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--clean-env", action="store_true",
        help="run with the environment of the worker instead of the current one",
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


def _kill_grace(text: str) -> float:
    grace_s = seconds(text)
    if grace_s > KILL_GRACE_MAX_S:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a day")
    return grace_s


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
        return Lines(args.each_line, b"\0" if args.null else b"\n")
    if args.pipe:
        return Pieces(args.block or _BLOCK_BYTES)
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
        from ciel.cli.commands.object import content_of, find_object  # few ask for one

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
        if path.name in files:
            raise UsageError(f"--in {path}: {files[path.name]} has the same name")
        files[path.name] = path
    return files


# --- results --------------------------------------------------------------------------------------


def _counts(
    job: Job, array: Array[Element], elements: Elements, slots_taken: RunningCount
) -> Counts:
    summary = job.summary
    assigned = summary.counts.get(str(TaskState.ASSIGNED), 0) if summary else 0
    running = slots_taken.among(assigned)
    submitted, failed = array.submitted, job.failed_count // array.wanted_each
    done = job.settled_count // array.wanted_each - failed
    running = max(0, min(running, submitted - done - failed))
    return Counts(done, running, failed, elements.total or submitted, elements.total is None)
