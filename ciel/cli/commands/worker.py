"""`ciel worker`: lists the workers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import screen_width
from ciel.cli.output.workers import render_workers
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client


def main(prog: str, words: Sequence[str]) -> int:
    """Run the verb."""
    return run_verb("ciel worker", "Lists the workers.", VERBS, words)


def _list(client: Client, args: Namespace) -> int:
    workers = client.ask("workers")
    if args.json:
        print_json(workers)
    else:
        print_text(render_workers(workers, screen_width()))
    return Status.DONE


def _add_nothing(parser: ArgumentParser) -> None:
    pass


VERBS = {"list": Verb("list the workers and their tasks", _add_nothing, _list)}
