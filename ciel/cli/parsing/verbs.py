"""Runs commands with several verbs, such as `ciel job`; builds only the chosen verb's parser."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from ciel.cli.connection import connect
from ciel.cli.outcome import Status, UsageError
from ciel.cli.parsing.options import add_cluster_options, make_parser
from ciel.cli.parsing.parser import suggestion
from ciel.client.client import Client


class Verb(NamedTuple):
    """A verb: its help, its arguments, and its action; `act` returns the exit status."""

    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    act: Callable[[Client, Namespace], int]
    more: str = ""
    prints_json: bool = True
    """Whether it has the option `--json`."""


def run_verb(command: str, about: str, verbs: Mapping[str, Verb], words: Sequence[str]) -> int:
    """Run the verb that the first argument names, with a connection to the cluster."""
    name = words[0] if words else ""
    if name not in verbs:
        summaries = {name: verb.summary for name, verb in verbs.items()}
        return show_verbs(command, about, summaries, words)
    verb = verbs[name]
    parser = make_parser(f"{command} {name}", verb.summary.capitalize() + ".", verb.more)
    verb.add_arguments(parser)
    add_cluster_options(parser, prints_json=verb.prints_json)
    args = parser.parse_args(words[1:])
    with closing(connect(args, f"{command} {name}")) as client:
        return verb.act(client, args)


def show_verbs(command: str, about: str, verbs: Mapping[str, str], words: Sequence[str]) -> int:
    """Print the verbs, for --help or without a verb; raise UsageError for an unknown verb."""
    name = words[0] if words else ""
    if name not in ("", "-h", "--help", "help"):
        hint = suggestion(name, verbs)
        raise UsageError(f"there is no {command} {name}{hint}; {command} --help lists the verbs")
    print(_help(command, about, verbs), file=sys.stdout if name else sys.stderr)
    return Status.DONE if name else Status.USAGE


def _help(command: str, about: str, verbs: Mapping[str, str]) -> str:
    width = max(map(len, verbs))
    rows = [f"  {name:{width}}  {summary}" for name, summary in verbs.items()]
    usage = f"usage: {command} VERB [OPTION…] [ARG…]"
    return "\n".join([usage, "", about, "", *rows, "", f"`{command} VERB --help` describes it."])
