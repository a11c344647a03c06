"""`ciel job`: list jobs, look at them, draw them, wait for them, cancel them, run failed tasks
again, remove them.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from ciel.cli.asking import chosen_jobs, elapsed_s, has_ended, job_json, list_jobs, master_now_s
from ciel.cli.options import count, seconds
from ciel.cli.outcome import OF_JOB_STATE, Status, say
from ciel.cli.printing import (
    Counts,
    Progress,
    duration,
    print_json,
    print_text,
    screen_width,
    table,
)
from ciel.cli.verbs import Verb, run_verb
from ciel.client.client import Client
from ciel.client.errors import QueryError
from ciel.core.jobs import JobState, JobSummary
from ciel.core.refs import details_text
from ciel.core.tasks import TaskState
from ciel.execution.report import visible, visible_text
from ciel.wire.descriptors import read_summary
from ciel.wire.references import from_json

_LISTED = 20
_SELECTORS = """\
JOB is a number, a range (1-10, 1-10:2), last, all, an id, or several of these (1,4,last).
all means what can be meant: to wait and cancel what has not ended, to retry what has failed, to rm
what has ended.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Do what the first word says."""
    return run_verb("ciel job", "Looks at jobs, and acts on them.", VERBS, words)


# --- list, info -----------------------------------------------------------------------------------


def _list(client: Client, args: Namespace) -> int:
    jobs = list_jobs(client, None if args.all else args.limit)
    status = client.ask("status")
    if args.json:
        print_json([job_json(job, status["now_s"]) for job in jobs])
        return Status.DONE
    print_text(render_list(jobs, status["now_s"], screen_width()))
    there_are = sum(status["jobs"].values())
    if there_are > len(jobs):
        say(f"the newest {len(jobs)} of {there_are} jobs; --all lists them all")
    return Status.DONE


def render_list(jobs: Sequence[JobSummary], now_s: float, width: int | None = None) -> str:
    """Lay out jobs, the newest last."""
    if not jobs:
        return "no jobs"
    rows = [
        (
            job.number, job.name, job.state, _results(job, "/"), sum(job.counts.values()),
            job.counts.get(str(TaskState.FAILED), 0), duration(elapsed_s(job, now_s)),
            duration(now_s - job.created_at_s),
        )
        for job in jobs
    ]  # fmt: skip
    headings = ("JOB", "NAME", "STATE", "RESULTS", "TASKS", "FAILED", "TIME", "AGE")
    return table(headings, rows, width)


def _results(job: JobSummary, of: str) -> str:
    """Say how many results are there, failed or not, those handed over among them."""
    there = job.wanted - job.unsettled + job.handed_over
    return f"{there}{of}{job.wanted + job.handed_over}"


def _info(client: Client, args: Namespace) -> int:
    jobs = chosen_jobs(client, args.jobs)
    now_s = master_now_s(client)
    for place, chosen in enumerate(jobs):
        answer = client.ask("job", {"job": chosen.id})
        job = read_summary(answer["summary"])
        names = answer["failed_tasks"]
        failures = [_failure(*found) for found in zip(answer["failures"], names, strict=True)]
        if args.json:
            print_json(job_json(job, now_s) | {"open": answer["open"], "failures": failures})
        else:
            print_text("\n" * bool(place) + render_info(job, failures, now_s))
    return Status.DONE


def _failure(fields: Any, name: str | None) -> dict[str, Any]:
    object_id, reason, details = from_json(fields)
    return {
        "object": object_id, "task": name, "reason": reason, "story": details_text(details)
    }  # fmt: skip


def render_info(job: JobSummary, failures: Sequence[dict[str, Any]], now_s: float) -> str:
    """Lay out what is known of one job, with the stories of what failed."""
    counts = ", ".join(f"{n} {state}" for state, n in job.counts.items()) or "none"
    age = duration(now_s - job.created_at_s)
    told = [failure for failure in failures if failure["reason"] != "CANCELLED"]
    is_new = job.reason and not (told and job.state == str(JobState.FAILED))  # else the first tells
    lines = [
        f"job {job.number} ({job.id})" + (f": {visible(job.name)}" if job.name else ""),
        f"state: {job.state}" + (f" ({_first_line(job.reason)})" if is_new else ""),
        f"tasks: {counts}",
        f"results: {_results(job, ' of ')}",
        f"time: {duration(elapsed_s(job, now_s))}, submitted {age} ago",
    ]
    if job.handed_over:
        lines[3] += f", {job.handed_over} of them handed over to the client and no longer kept"
    for failure in told:
        story = [f"  {line}" for line in visible_text(failure["story"]).split("\n")]
        maker = f"task {visible(failure['task'])}: " if failure["task"] else ""
        lines += ["", f"{maker}{failure['object']} failed ({visible(failure['reason'])}):", *story]
    return "\n".join(lines)


def _first_line(text: str) -> str:
    first, _, rest = text.partition("\n")
    return visible(first) + (" …" if rest else "")


# --- wait, cancel, retry, rm ----------------------------------------------------------------------


def _wait(client: Client, args: Namespace) -> int:
    """Wait for jobs to end (`all`: those that have not ended); the worst of their ends counts."""
    jobs = chosen_jobs(client, args.jobs, lambda job: not has_ended(job))
    return _wait_for(client, jobs, args)


def _wait_for(client: Client, jobs: Sequence[JobSummary], args: Namespace) -> int:
    deadline_s = None if args.timeout is None else time.monotonic() + args.timeout
    ended = []
    for job in jobs:
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        with _progress(client, job):
            ended.append(client.wait_for_job(job.id, left_s))
    if args.json:
        _print_jobs(client, ended)
    statuses = [OF_JOB_STATE[job.state] for job in ended]
    for job, status in zip(ended, statuses, strict=True):
        if status != Status.DONE:
            say(f"job {job.number} is {job.state}" + (f": {job.reason}" if job.reason else ""))
    return max(statuses, default=Status.DONE)


def _progress(client: Client, job: JobSummary) -> Progress:
    """Show somebody at a terminal how far a job is that is waited for."""

    def counts() -> Counts:
        return Counts.of_states((client.last_news(job.id) or job).counts)

    return Progress(f"job {job.number}", counts, quiet=not sys.stderr.isatty())


def _cancel(client: Client, args: Namespace) -> int:
    chosen = chosen_jobs(client, args.jobs, lambda job: not has_ended(job))
    going = [job for job in chosen if not has_ended(job)]
    for job in going:
        client.cancel_job(job.id)
    ended = [client.wait_for_job(job.id, args.timeout) for job in going]
    if args.json:
        _print_jobs(client, ended)
    for job in ended:
        say(f"job {job.number} is {job.state}")
    for job in chosen:
        if has_ended(job):
            say(f"job {job.number} had ended already: it is {job.state}")
    if not chosen:
        say("no job is under way")
    return Status.DONE


def _retry(client: Client, args: Namespace) -> int:
    chosen = chosen_jobs(client, args.jobs, lambda job: job.state == str(JobState.FAILED))
    status = Status.DONE
    again = []
    failed = str(TaskState.FAILED)
    for before in chosen:
        try:
            job = client.retry_job(before.id)
        except QueryError as error:
            say(str(error))
            status = Status.FAILED
            continue
        tasks = before.counts.get(failed, 0) - job.counts.get(failed, 0)
        say(f"job {job.number}: {tasks} {'task runs' if tasks == 1 else 'tasks run'} again")
        again.append(job)
    if not chosen:
        say("no job has failed")
    if args.wait:
        return max(status, _wait_for(client, again, args))
    if args.json:
        _print_jobs(client, again)
    return status


def _rm(client: Client, args: Namespace) -> int:
    chosen = chosen_jobs(client, args.jobs)
    named_all = args.jobs == ["all"]
    removed, left = [], []
    for job in chosen:
        if named_all and not has_ended(job):
            left.append(job.number)
            continue
        try:
            client.remove_job(job.id)
            removed.append(job.number)
        except QueryError as error:
            left.append(job.number)
            say(str(error))
    if args.json:
        print_json({"removed": removed, "left": left})
    elif len(chosen) != 1 or removed:
        say(f"removed {len(removed)} {'job' if len(removed) == 1 else 'jobs'}")
    if named_all and left:
        say(f"left what has not ended: {', '.join(map(str, left))}")
    return Status.FAILED if left and not named_all else Status.DONE


def _print_jobs(client: Client, jobs: Sequence[JobSummary]) -> None:
    now_s = master_now_s(client)
    print_json([job_json(job, now_s) for job in jobs])


# --- output, log, graph ---------------------------------------------------------------------------


def _output(client: Client, args: Namespace) -> int:
    from ciel.cli.job_output import print_output

    return print_output(client, args)


def _log(client: Client, args: Namespace) -> int:
    from ciel.cli.job_log import print_log

    return print_log(client, args)


def _graph(client: Client, args: Namespace) -> int:
    from ciel.cli.job_graph import print_graph

    return print_graph(client, args)


# --- the command line -----------------------------------------------------------------------------


def _add_jobs(parser: ArgumentParser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="a number, A-B, last, all, an id")


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument(
        "--limit", type=count, default=_LISTED, metavar="N", help="the newest N (default 20)"
    )


def _add_wait(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="wait no longer (90s, 10m)")


def _add_retry(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument("--failed", action="store_true", help="only those that failed (always so)")
    parser.add_argument("--wait", action="store_true", help="wait until it has ended, as job wait")
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="wait no longer (90s, 10m)")


def _add_output(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument("--out", metavar="DIR", help="write each to a file DIR/NUMBER instead")


def _add_log(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")


def _add_graph(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a number, last, an id")
    parser.add_argument("-o", dest="output", metavar="FILE", help="write it to FILE; by its ending")
    parser.add_argument(
        "--format", choices=("svg", "dot", "json"), help="whatever FILE ends in (default svg)"
    )


VERBS = {
    "list": Verb("list the newest jobs", _add_list, _list),
    "info": Verb("show how jobs stand, and why tasks failed", _add_jobs, _info, _SELECTORS),
    "wait": Verb("wait until jobs have ended; exits as they did", _add_wait, _wait, _SELECTORS),
    "output": Verb("print the results of jobs, in order", _add_output, _output, _SELECTORS),
    "log": Verb("print what the programs of jobs complained", _add_log, _log, _SELECTORS),
    "graph": Verb("draw the tasks of a job and what they read", _add_graph, _graph),
    "cancel": Verb(
        "cancel jobs, and wait until their programs are gone", _add_wait, _cancel, _SELECTORS
    ),
    "retry": Verb("run the failed tasks of jobs again", _add_retry, _retry, _SELECTORS),
    "rm": Verb("forget jobs that have ended, with their results", _add_jobs, _rm, _SELECTORS),
}
