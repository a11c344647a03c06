"""`ciel doctor`: finds faults of an installation and its cluster, and shows how to repair them.

`doctor.host` checks this computer, `doctor.cluster` the cluster, `doctor.journal` a journal. None
changes anything.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ciel.cli.daemons.ports import DEFAULT_LISTEN
from ciel.cli.doctor.findings import FAULT, NOTE, Finding
from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import add_cluster_options, make_parser
from ciel.execution.report import visible

_EPILOG = """\
Repair every fault; a note is for information. The exit status is 1 if there are faults. To find the
faults that affect a daemon, run it as the user and on the host of that daemon.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run all checks, and print the findings."""
    parser = make_parser(
        "ciel doctor", "Find faults of this installation, and show how to repair them.", _EPILOG
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN,
        help="the address to check for a new master, if none is running (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--journal", metavar="DIR", type=Path,
        help="check the journal in this directory (default: the one of `ciel up`)",
    )  # fmt: skip
    add_cluster_options(parser)
    args = parser.parse_args(words)
    from ciel.cli.doctor.cluster import check_cluster
    from ciel.cli.doctor.host import check_address, check_host
    from ciel.cli.doctor.journal import check_journal, journal_here
    from ciel.cli.doctor.launcher import check_launcher

    found = check_host(os.environ)
    of_cluster = check_cluster(args.master, args.access, os.environ)
    found += [finding for finding in of_cluster if finding not in found]
    if not of_cluster:
        found += check_address(args.listen)
    found += check_launcher(os.environ)
    if (journal := args.journal or journal_here(os.environ)) is not None:
        found += check_journal(journal)
    if args.json:
        print_json([finding._asdict() for finding in found])
    else:
        print_text(render(found))
    counts = Counter(finding.state for finding in found)
    if counts[FAULT]:
        say(f"{counts[FAULT]} {'fault' if counts[FAULT] == 1 else 'faults'} to repair")
    return Status.FAILED if counts[FAULT] else Status.DONE


def render(found: Sequence[Finding]) -> str:
    """Lay out the findings, each with its advice below it."""
    width = max(len(finding.check) for finding in found)
    lines = []
    for finding in found:
        mark = {FAULT: "FAULT", NOTE: "note"}.get(finding.state, "ok")
        lines.append(f"{mark:5}  {finding.check:{width}}  {visible(finding.found)}")
        if finding.advice:
            lines.append(f"       {'':{width}}  → {visible(finding.advice)}")
    return "\n".join(lines)
