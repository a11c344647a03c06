"""Finds the jobs that a new job follows, by `--after` and `--after-any`."""

from __future__ import annotations

import argparse

from ciel.cli.jobs.queries import chosen_jobs, has_ended
from ciel.client.client import Client
from ciel.core.jobs import Predecessor


def predecessors(client: Client, args: argparse.Namespace) -> list[Predecessor]:
    """Return the jobs of `--after` and `--after-any`; raises UsageError."""
    found: dict[str, Predecessor] = {}
    for words, in_any_way in ((args.after_any, True), (args.after, False)):
        if words:
            for job in chosen_jobs(client, words, lambda job: not has_ended(job)):
                found[job.id] = Predecessor(job.id, in_any_way)
    return list(found.values())
