"""`ciel job`: list jobs, look at one, wait for it, cancel it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from ciel.cli.options import add_cluster_options, connect, count, make_parser, seconds
from ciel.cli.outcome import OF_JOB_STATE, Status, say
from ciel.cli.printing import duration, print_json, print_text, table
from ciel.cli.submit import summary_json
from ciel.client.client import Client
from ciel.core.jobs import JobSummary
from ciel.wire.descriptors import read_summary

_LIST_LIMIT = 20
_ALL_LIMIT = 1_000_000


def main(prog: str, words: Sequence[str]) -> int:
    """Pick the verb and do it."""
    parser = make_parser("ciel job", "List jobs, look at one, wait for it, cancel it.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (_, text, add_arguments) in _VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text.capitalize() + ".")
        add_arguments(verb)
        add_cluster_options(verb)
    args = parser.parse_args(words)
    act, _, _ = _VERBS[args.verb]
    with closing(connect(args, f"ciel job {args.verb}")) as client:
        return act(client, args)


def _list(client: Client, args: argparse.Namespace) -> int:
    jobs = [read_summary(fields) for fields in client.ask("jobs", {"limit": args.limit})]
    if args.json:
        print_json([summary_json(job) for job in jobs])
    else:
        print_text(render_list(jobs, _master_now_s(client)))
    return Status.DONE


def _info(client: Client, args: argparse.Namespace) -> int:
    answer = client.ask("job", {"job": selector(args.job)})
    summary = read_summary(answer["summary"])
    if args.json:
        print_json(answer | {"summary": summary_json(summary)})
    else:
        print_text(render_info(summary, answer, _master_now_s(client)))
    return Status.DONE


def _wait(client: Client, args: argparse.Namespace) -> int:
    """Wait for one job, or for all that have not ended; the worst of their ends counts."""
    deadline_s = None if args.timeout is None else time.monotonic() + args.timeout
    ended = []
    for summary in _selected(client, args.job):
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        ended.append(client.wait_for_job(summary.id, left_s))
    return _tell_ends(ended, args)


def _cancel(client: Client, args: argparse.Namespace) -> int:
    selected = [job for job in _selected(client, args.job) if job.ended_at_s is None]
    for job in selected:
        client.cancel_job(job.id)
    ended = [client.wait_for_job(job.id, args.timeout) for job in selected]
    if args.json:
        print_json([summary_json(job) for job in ended])
    for job in ended:
        say(f"job {job.number} is {job.state}")
    if not selected:
        say("nothing to cancel: it has ended already")
    return Status.DONE


def _selected(client: Client, text: str) -> list[JobSummary]:
    if text == "all":
        jobs = [read_summary(fields) for fields in client.ask("jobs", {"limit": _ALL_LIMIT})]
        return [job for job in jobs if job.ended_at_s is None]
    return [read_summary(client.ask("job", {"job": selector(text)})["summary"])]


def _tell_ends(ended: Sequence[JobSummary], args: argparse.Namespace) -> int:
    if args.json:
        print_json([summary_json(job) for job in ended])
    statuses = [OF_JOB_STATE[job.state] for job in ended]
    for job, status in zip(ended, statuses, strict=True):
        if status != Status.DONE:
            say(f"job {job.number} is {job.state}" + (f": {job.reason}" if job.reason else ""))
    return max(statuses, default=Status.DONE)


def _master_now_s(client: Client) -> float:
    """Return the time on the master's monotonic clock, in which jobs tell theirs."""
    now_s: float = client.ask("status").get("now_s", time.monotonic())
    return now_s


def selector(text: str) -> str | int:
    """Return what the master understands: a number, `last`, or an id."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text


def render_list(jobs: Sequence[JobSummary], now_s: float) -> str:
    """Lay out jobs, the newest last."""
    if not jobs:
        return "no jobs"
    rows = [
        (
            job.number, job.name, job.state, f"{job.wanted - job.unsettled}/{job.wanted}",
            sum(job.counts.values()), duration((job.ended_at_s or now_s) - job.created_at_s),
        )
        for job in jobs
    ]  # fmt: skip
    return table(("JOB", "NAME", "STATE", "RESULTS", "TASKS", "TIME"), rows)


def render_info(job: JobSummary, answer: dict[str, Any], now_s: float) -> str:
    """Lay out what is known of one job, with the stories of what failed."""
    counts = ", ".join(f"{n} {state}" for state, n in job.counts.items()) or "none"
    lines = [
        f"job {job.number} ({job.id})" + (f": {job.name}" if job.name else ""),
        f"state: {job.state}" + (f" ({job.reason})" if job.reason else ""),
        f"tasks: {counts}",
        f"results: {job.wanted - job.unsettled} of {job.wanted}",
        f"time: {duration((job.ended_at_s or now_s) - job.created_at_s)}",
    ]
    for object_id, reason, details in answer["failures"]:
        story = details if isinstance(details, str) else ""
        lines += ["", f"{object_id} failed ({reason}):", *(f"  {s}" for s in story.splitlines())]
    return "\n".join(lines)


def _add_selector(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its number, its id, or last")


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=count, default=_LIST_LIMIT, metavar="N", help="the newest N (default 20)"
    )


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="its number, its id, last, or all")
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="wait no longer (90s, 10m)")


Verb = tuple[
    Callable[[Client, argparse.Namespace], int], str, Callable[[argparse.ArgumentParser], None]
]
_VERBS: dict[str, Verb] = {
    "list": (_list, "list the newest jobs", _add_limit),
    "info": (_info, "show how a job stands, and why tasks failed", _add_selector),
    "wait": (_wait, "wait until a job has ended; exits as it did", _add_wait),
    "cancel": (_cancel, "cancel a job, and wait until its programs are gone", _add_wait),
}
