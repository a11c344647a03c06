"""`ciel launcher`: shows what the launcher of workers of `ciel up --on` has done, and why."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ciel.access.paths import current_path
from ciel.cli.launchers.allocations import read_report
from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import duration, screen_width, table
from ciel.cli.parsing.options import make_parser
from ciel.cli.parsing.parser import whole_number
from ciel.cli.parsing.verbs import show_verbs
from ciel.client.errors import NoMasterError

_ABOUT: Final = "Shows what the launcher of workers has done, and why."
_STALE_S: Final = 60.0
"""The autoscaler writes its report twice a second, unless the resource manager takes its time."""


class _Verb(NamedTuple):
    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    render: Callable[[dict[str, Any], Namespace], str]
    facts: Callable[[dict[str, Any], Namespace], Any]


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand, on the report of the cluster of `ciel up`."""
    name = words[0] if words else ""
    if name not in VERBS:
        summaries = {name: verb.summary for name, verb in VERBS.items()}
        return show_verbs("ciel launcher", _ABOUT, summaries, words)
    verb = VERBS[name]
    parser = make_parser(f"ciel launcher {name}", verb.summary.capitalize() + ".")
    verb.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(words[1:])
    link = current_path(os.environ)
    report = read_report(link.readlink().parent) if link.is_symlink() else None
    if report is None:
        raise NoMasterError("", "no launcher brings workers: `ciel up --on LAUNCHER` starts one")
    if args.json:
        print_json(verb.facts(report, args))
    else:
        print_text(verb.render(report, args))
    return Status.DONE


def _list(report: dict[str, Any], args: Namespace) -> str:
    rows = [
        (row["id"], row["phase"], row["place"] or "-", row["worker"] or "-", row["reason"])
        for row in _allocations(report, args)
    ]
    if not rows:
        return "no allocation is queued or running; --all lists those that have ended"
    return table(("ALLOCATION", "STATE", "HOST", "WORKER", "REASON"), rows, screen_width())


def _allocations(report: dict[str, Any], args: Namespace) -> list[dict[str, Any]]:
    return [row for row in report["allocations"] if args.all or row["phase"] != "ended"]


def _explain(report: dict[str, Any], args: Namespace) -> str:
    now_s = time.time()
    lines = []
    for row in _decisions(report, args):
        ago = f"{duration(max(0.0, now_s - row['at_s']))} ago"
        lines.append(f"{ago:>12}  {_what(row)}: {row['why']}")
    written_s = report["written_at_s"]
    if written_s is None or now_s - written_s > _STALE_S:
        lines.append("the autoscaler does not run, or waits: see autoscaler.log (ciel up)")
    return "\n".join(lines)


def _what(row: dict[str, Any]) -> str:
    names = row.get("allocations") or row.get("workers") or ()
    count = f"{len(names)} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
    match row["what"]:
        case "request":
            return f"asked for {count}"
        case "cancel":
            return f"cancelled {count}"
        case "release":
            return f"released {count}"
        case "failed":
            return "failed"
    return "changes nothing"


def _decisions(report: dict[str, Any], args: Namespace) -> list[dict[str, Any]]:
    return list(report["decisions"][-args.last :])


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="also list those that have ended")


def _add_explain(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--last", type=whole_number(1, 200), metavar="N", default=20,
        help="show the last N decisions (default 20)",
    )  # fmt: skip


VERBS: Final = {
    "list": _Verb("list the allocations and their workers", _add_list, _list, _allocations),
    "explain": _Verb(
        "show the last decisions, the newest last, each with its reason",
        _add_explain, _explain, _decisions,
    ),
}  # fmt: skip
