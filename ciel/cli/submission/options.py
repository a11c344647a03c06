"""The options of `ciel submit`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ciel.cli.parsing.options import (
    add_cluster_options,
    add_own_cluster_options,
    make_parser,
    require_text,
    seconds,
)
from ciel.cli.parsing.parser import Parser, memory_size, whole_number
from ciel.cli.parsing.selectors import read_jobs
from ciel.cli.submission.elements import has_place
from ciel.cli.submission.halting import read_halt
from ciel.cli.submission.numbers import number_ranges
from ciel.client.jobs.arrays import UNSETTLED_MAX
from ciel.core.offers.resources import read_request
from ciel.core.scheduling import LOCALITY, POLICIES
from ciel.core.tasks import DEFAULT_NEEDS, LIMITS, TEXT_CHECKS, TIMEOUT_MAX_S, Limit, Needs
from ciel.storage.interface import LEVELS

_FIRST_LIMITS = 3
"""How many limits the help text shows before the scheduling policy."""
_DAY_S = 86_400.0

_KINDS = (
    "RUNTIME_EXCEPTION", "TIMED_OUT", "MEMORY_LIMIT", "NO_SPACE", "PROGRAM_NOT_STARTED",
    "WORKER_FAULT",
)  # fmt: skip
"""The kinds of failures of a program that another attempt may avoid."""

_EPILOG = """\
Options come before PROGRAM; all words after it are its arguments. PROGRAM runs in the current
directory, with the current environment (docs/where-programs-run.md). A name with a slash is a path
relative to this directory; any other name is searched for in PATH. No shell is involved. A single
program reads standard input.

In an array, {} in an argument is replaced by the element, and {#} by its number; the variables
CIEL_ELEMENT and CIEL_INDEX contain the same. {.} is the element without its extension, {/} its base
name, {//} its directory, {/.} its base name without extension; {2}, {2/.} its second value, with
--colsep, -n or several --each-line. Each line of --each-line runs as soon as it is read.
Outputs are printed in the order of the array. The exit status is 0 only if every element exits with
0. The results of arrays of more than 10,000 elements are deleted after they are printed or written,
unless --detach is given.

  ciel submit sort words.txt
  ciel submit --array 1-10 seq {}
  ls *.log | ciel submit --each-line - grep -c error {}
"""


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line, and reject options that exclude each other."""
    parser = make_parser("ciel submit", "Run one program, or an array of them, as a job.", _EPILOG)
    parser.usage = "ciel submit [OPTION…] PROGRAM [ARG…]"
    _add_array_options(parser)
    _add_order(parser)
    _add_file(parser)
    _add_surroundings(parser)
    _add_records(parser)
    parser.add_argument("--name", metavar="TEXT", help="the name of the job")
    add_limits(parser, LIMITS[:_FIRST_LIMITS])
    parser.add_argument(
        "--policy", choices=POLICIES, default=LOCALITY,
        help="how the scheduler chooses a worker for a run (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="keep intermediate objects until the job is removed"
    )
    add_limits(parser, LIMITS[_FIRST_LIMITS:])
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
    if args.check and args.file is None:
        parser.error("--check examines a job file: add --file FILE")
    if args.file is not None:
        _check_file(parser, args)
        return args
    if not args.program:
        parser.error("no program; write it after the options, as in: ciel submit sort words.txt")
    args.is_array = args.array is not None or bool(args.each_line) or args.pipe
    _check(parser, args)
    args.out = args.results if args.out is None else args.out
    return args


def _check_file(parser: Parser, args: argparse.Namespace) -> None:
    """Reject options that a job file does not take, since it says itself what its tasks are."""
    if args.program:
        parser.error("the job file says what runs: remove the program")
    taken = {
        "file", "check", "program", "master", "access", "json", "workers", "quiet", "bar", "name",
        "detach", "keep", "policy", "store", "after", "after_any", "max_fails", "dry_run",
    }  # fmt: skip
    for action in parser._actions:
        given = getattr(args, action.dest, action.default)
        if action.dest not in taken and given != action.default:
            parser.error(f"the job file takes the place of {action.option_strings[-1]}: remove it")
    read_jobs([*args.after, *args.after_any])


def _check(parser: Parser, args: argparse.Namespace) -> None:
    """Reject options that exclude each other."""
    require_text("--name", args.name or "")
    if args.is_array and has_place(args.name or ""):
        parser.error("--name is the name of the job, which all elements share: remove {} and {#}")
    read_jobs([*args.after, *args.after_any])
    if args.results is not None and (args.collect or args.stderr):
        option = "--collect" if args.collect else "--stderr"
        parser.error(f"--results writes all that a run prints to files: remove {option}")
    if args.halt is not None and args.halt.is_share and args.pipe:
        parser.error("--pipe does not know how many pieces there are: write --halt without %")
    if args.collect and args.out is None:
        parser.error("--collect needs a directory for the files: add --out DIR")
    for option, given in (("-0", args.null), ("--colsep", args.colsep), ("-n", args.max_args)):
        if given and not args.each_line:
            parser.error(f"{option} is only valid with --each-line")
    if args.max_args and (args.colsep or len(args.each_line) > 1):
        parser.error("-n takes whole lines of one input: remove --colsep, or further --each-line")
    if args.each_line.count("-") > 1:
        parser.error("standard input can be read only once")
    if (args.resume or args.resume_failed) and args.joblog is None:
        parser.error("--resume needs the log of the earlier run: add --joblog FILE")
    if args.block is not None and not args.pipe:
        parser.error("--block is only valid with --pipe")
    limit = args.jobs or (args.array.at_once if args.array is not None else 0)
    if args.follow and not args.detach and (args.out is not None or args.json):
        from ciel.cli.output.following import WHOLE_ONLY  # few commands need it

        parser.error(WHOLE_ONLY.format("--json" if args.json else "--out"))
    waiting = {
        "--out": args.out, "--results": args.results, "--joblog": args.joblog,
        "--stderr": args.stderr, "--halt (--max-fails holds also then)": args.halt,
        "--bar": args.bar,
    }  # fmt: skip
    for option, given in (waiting | {"-j (or %N in --array)": limit}).items():
        if args.detach and given:
            parser.error(f"{option} needs a command that waits for the job; remove --detach")


def _add_array_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for arrays: their elements, and how many run at a time."""
    array = parser.add_mutually_exclusive_group()
    array.add_argument(
        "--array", metavar="A-B", type=number_ranges,
        help="one run for each number (A-B:STEP; 1,3,5-9; 001-100; 1-100%%4: four at a time)",
    )  # fmt: skip
    array.add_argument(
        "--each-line", metavar="FILE", action="append", default=[],
        help="one run for each line of a file (- is standard input); given several times: one for "
        "each combination of lines",
    )  # fmt: skip
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
    parser.add_argument(
        "-C", "--colsep", metavar="PATTERN", type=pattern,
        help="split each line at this regular expression into {1}, {2} and so on",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--max-args", metavar="N", type=whole_number(1, 1000),
        help="so many lines for one run: {1}, {2} and so on; {} becomes all of them",
    )  # fmt: skip
    # argparse reads -0 as a number, and then rejects negative numbers as values of options.
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


def _add_order(parser: argparse.ArgumentParser) -> None:
    """Add the options that say when the job starts, and when it stops early."""
    for option, meaning in (
        ("--after", "have completed; if one does not, this job is cancelled"),
        ("--after-any", "have ended in any way"),
    ):
        parser.add_argument(
            option, metavar="JOB", action="append", default=[],
            help=f"start when these jobs {meaning} (a number, name, id or last; repeatable)",
        )  # fmt: skip
    parser.add_argument(
        "--max-fails", metavar="N", type=whole_number(0, 1_000_000_000), default=-1,
        help="cancel the job when more than N runs have failed",
    )  # fmt: skip
    parser.add_argument(
        "--halt", metavar="WHEN", type=read_halt,
        help="stop now, or start no more runs (soon), after so many: now,fail=1, soon,fail=30%%, "
        "now,success=1, soon,done=5",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true",
        help="print the command lines that would run, quoted for a shell, and run nothing",
    )  # fmt: skip


def _add_file(parser: argparse.ArgumentParser) -> None:
    """Add the options for job files."""
    parser.add_argument(
        "--file", metavar="FILE",
        help="run the tasks of a job file (docs/reach/job-files.md) instead of one program",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true",
        help="print what the job file would run, or its errors, and run nothing",
    )  # fmt: skip


def _add_records(parser: argparse.ArgumentParser) -> None:
    """Add the options for the log of the job, and for its progress."""
    parser.add_argument(
        "--joblog", metavar="FILE",
        help="write a line for each finished element: host, start, seconds, status, command",
    )  # fmt: skip
    resume = parser.add_mutually_exclusive_group()
    resume.add_argument(
        "--resume", action="store_true", help="omit the elements that are in the --joblog already"
    )
    resume.add_argument(
        "--resume-failed", action="store_true",
        help="omit the elements that succeeded according to the --joblog",
    )  # fmt: skip
    parser.add_argument(
        "--bar", action="store_true",
        help="show the progress as a bar, with the time at which the job will end",
    )  # fmt: skip


def _add_surroundings(parser: argparse.ArgumentParser) -> None:
    """Add the options for the files and the environment of a program, and for its output."""
    parser.add_argument(
        "--in", dest="inputs", metavar="FILE", action="append", default=[],
        help="copy a file into a private directory, and run the program there (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--object", dest="objects", metavar="NAME=OBJECT", action="append", default=[],
        help="like --in, with an object of the cluster, see `ciel object` (repeatable)",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--cwd", metavar="DIR", type=Path, help="run in this directory instead of the current one"
    )
    where.add_argument(
        "--scratch", action="store_true",
        help="run in a private directory, which is deleted afterwards",
    )  # fmt: skip
    out = parser.add_mutually_exclusive_group()
    out.add_argument(
        "--out", metavar="DIR",
        help="write each output to DIR/N, or to a file name with {} or {#} in it, instead of "
        "printing it; files of an earlier run are removed first",
    )  # fmt: skip
    out.add_argument(
        "--results", metavar="DIR",
        help="like --out, and write standard error to the same name with .err",
    )  # fmt: skip
    parser.add_argument(
        "--collect", metavar="NAME", action="append", default=[],
        help="copy a file that the run wrote, or all that match a pattern, into the --out "
        "directory, as DIR/NAME, in an array as DIR/N/NAME (repeatable)",
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


def pattern(text: str) -> re.Pattern[str]:
    """Read a regular expression that separates values (an argparse type)."""
    try:
        found = re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a regular expression: {error}"
        ) from None
    if found.groups:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: write (?:…) instead of (…)")
    if found.match(""):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} matches nothing, so it separates nothing")
    return found


def add_limits(parser: argparse.ArgumentParser, limits: Sequence[Limit]) -> None:
    """Add the options for limits of each run, which `needs_of` reads."""
    for limit in limits:
        if limit.option:
            parser.add_argument(
                limit.option, type=_parser_of(limit), default=getattr(DEFAULT_NEEDS, limit.name),
                metavar=limit.metavar, dest=limit.name,
                action=_AddResource if limit.kind == "resources" else "store",
                help=limit.help + (", ".join(_KINDS) if limit.kind == "kinds" else ""),
            )  # fmt: skip


class _AddResource(argparse.Action):
    """Adds a resource to the earlier ones of the command line."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
        option_string: str | None = None,
    ) -> None:  # fmt: skip
        name, amount = values
        known = dict(getattr(namespace, self.dest))
        if name in known:
            raise argparse.ArgumentError(self, f"{name} is named twice: name its whole amount once")
        if amount:
            known[name] = amount
        setattr(namespace, self.dest, tuple(sorted(known.items())))


def needs_of(args: argparse.Namespace) -> Needs:
    """Return the resources and limits of each run."""
    return Needs(**{limit.name: getattr(args, limit.name) for limit in LIMITS if limit.option})


def _parser_of(limit: Limit) -> Callable[[str], Any]:
    if limit.name == "timeout_s":
        return _timeout
    match limit.kind:
        case "bytes":
            return memory_size
        case "kinds":
            return _kinds
        case "resources":
            return _resource
        case kind if kind in TEXT_CHECKS:
            return _checked(TEXT_CHECKS[kind])
        case "seconds":
            return _seconds_up_to(limit)
    return _number(int(limit.least), int(limit.most))


def _number(least: int, most: int) -> Callable[[str], int]:
    if least >= 0:
        return whole_number(least, most)

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = most + 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not a number from {least} to {most}"
            )
        return number

    return read


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(text.split(","))
    for kind in kinds:
        if kind not in _KINDS:
            known = ", ".join(_KINDS)
            raise argparse.ArgumentTypeError(f"{kind[:40]!r} is not a kind of failure: use {known}")
    return kinds


def _checked(check: Callable[[str], str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if wrong := check(text):
            raise argparse.ArgumentTypeError(wrong)
        return text

    return read


def _resource(text: str) -> tuple[str, int]:
    try:
        return read_request(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds_up_to(limit: Limit) -> Callable[[str], float]:
    def read(text: str) -> float:
        time_s = seconds(text)
        if time_s > limit.most:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {_span(limit.most)}")
        return time_s

    return read


def _span(time_s: float) -> str:
    return "a day" if time_s == _DAY_S else f"{time_s:g}s"


def _timeout(text: str) -> float:
    timeout_s = seconds(text)
    if not 0 < timeout_s <= TIMEOUT_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be more than 0, and at most {TIMEOUT_MAX_S:.0f}s"
        )
    return timeout_s
