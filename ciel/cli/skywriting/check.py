"""`ciel sw check` and `ciel sw fmt`: checks and formats scripts, without a cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.output.printing import print_json, print_text, write_output
from ciel.cli.parsing.options import make_parser
from ciel.cli.skywriting.source import STANDARD_INPUT, amount, problems_of, read_source
from ciel.client.data.files import whole_file
from ciel.execution.report import visible, visible_text
from ciel.skywriting.errors import Problem, Source, SourceError

_CHECK_EPILOG = """\
FILE may be - for standard input. All errors and warnings are printed on standard output. The exit
status is 0 if no script has errors (warnings do not count), 1 if one has, and 2 if one cannot be
read.
"""
_FMT_EPILOG = """\
FILE may be - for standard input. Comments stay. Scripts with errors are not formatted. The exit
status is 1 if a script has errors, or with --check if one is not formatted; 2 if one cannot be
read.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run `check` or `fmt`; return the exit status."""
    return (_check if prog.endswith("check") else _fmt)(prog, words)


def _check(prog: str, words: Sequence[str]) -> int:
    parser = make_parser(prog, "Print the errors and warnings of scripts.", _CHECK_EPILOG)
    parser.add_argument("--json", action="store_true", help="print JSON, a line for each problem")
    parser.add_argument("files", metavar="FILE", nargs="+")
    args = parser.parse_args(words)
    found: list[Problem] = []

    def check(name: str, source: Source) -> bool:
        problems = problems_of(source)
        found.extend(problems)
        for problem in problems:
            _print_problem(problem, args.json)
        return all(problem.is_warning for problem in problems)

    status = _for_each(args.files, check)
    errors = sum(not problem.is_warning for problem in found)
    if found and not args.json:
        warnings = len(found) - errors
        parts = [amount(errors, "error")] if errors else []
        parts += [amount(warnings, "warning")] if warnings else []
        say(", ".join(parts))
    return status


def _print_problem(problem: Problem, as_json: bool) -> None:
    kind = "warning" if problem.is_warning else "error"
    if not as_json:
        print_text(visible_text(f"{kind}: {problem}"))
        return
    line, column = problem.source.place(problem.offset)
    place = {"file": problem.source.name, "line": line, "column": column}
    print_json(place | {"kind": kind, "message": problem.message})


def _fmt(prog: str, words: Sequence[str]) -> int:
    parser = make_parser(prog, "Print formatted scripts.", _FMT_EPILOG)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-w", "--write", action="store_true", help="write the files instead")
    how.add_argument(
        "--check", action="store_true", help="only print the names of scripts that would change"
    )
    parser.add_argument("files", metavar="FILE", nargs="+")
    args = parser.parse_args(words)
    if args.write and STANDARD_INPUT in args.files:
        parser.error("standard input cannot be written back")
    return _for_each(args.files, lambda name, source: _format(name, source, args))


def _format(name: str, source: Source, args: argparse.Namespace) -> bool:
    from ciel.skywriting.syntax.grammar import parse
    from ciel.skywriting.syntax.printer import show

    try:
        text = show(parse(source))
    except SourceError as error:
        for problem in error.problems:
            say(f"error: {problem}")
        return False
    if not args.write and not args.check:
        write_output(text.encode())
        return True
    is_formatted = text == source.text
    if not is_formatted:
        if args.check:
            print_text(source.name)
        else:
            _replace(Path(name), text.encode())
    return args.write or is_formatted


def _replace(path: Path, content: bytes) -> None:
    """Replace the whole content of a file, but keep its mode, and a link to it.

    Raises UsageError.
    """
    target = path.resolve()
    try:
        with whole_file(target) as file:
            file.write(content)
            os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
    except OSError as error:
        raise UsageError(f"{visible(str(path))}: it cannot be written: {error.strerror}") from None


def _for_each(names: Sequence[str], act: Callable[[str, Source], bool]) -> int:
    """Call `act` with each script and its name; return the exit status.

    A script that cannot be read or written does not stop the others.
    """
    status = Status.DONE
    for name in names:
        try:
            if not act(name, read_source(name)):
                status = max(status, Status.FAILED)
        except UsageError as error:
            say(str(error))
            status = Status.USAGE
    return status
