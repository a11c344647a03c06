"""`ciel roles`: lists the roles of keys."""

from __future__ import annotations

from collections.abc import Sequence

from ciel.access.keys import Role
from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_text
from ciel.cli.parsing.options import make_parser


def main(prog: str, words: Sequence[str]) -> int:
    """Print each role on a line."""
    make_parser("ciel roles", "List the roles of keys.").parse_args(words)
    print_text("\n".join(str(role) for role in Role))
    return Status.DONE
