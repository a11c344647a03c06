"""`ciel job`: lists, shows and draws jobs; waits for them, cancels, retries and removes them."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from ciel.cli.jobs.queries import (
    MasterClock,
    chosen_jobs,
    elapsed_s,
    has_ended,
    job_json,
    list_jobs,
    master_clock,
)
from ciel.cli.jobs.task_table import clock_text, render_tasks, run_text
from ciel.cli.outcome import OF_JOB_STATE, Status, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.progress import Counts, Progress
from ciel.cli.output.tables import duration, screen_width, table
from ciel.cli.parsing.options import count, seconds
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client
from ciel.client.errors import QueryError
from ciel.core.jobs import JobState, JobSummary
from ciel.core.refs import details_text
from ciel.core.tasks import TaskState
from ciel.execution.commands import with_command
from ciel.execution.report import visible, visible_text
from ciel.wire.descriptors import read_summary
from ciel.wire.references import from_json

_LISTED = 20
_WORKERS_SHOWN = 5
_ENDS = (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)
_SELECTORS = """\
JOB is a number, a range (1-10, or 1-10:2 for every second number), last, all, an id, a name, or
several of these (1,4,last).
A name (from ciel submit --name) means the newest job of that name.
all means every job to which the command applies: wait and cancel take unfinished jobs, retry takes
failed ones, rm takes ended ones.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    return run_verb(
        "ciel job", "Shows jobs, waits for them, cancels, retries and removes them.", VERBS, words
    )


# --- list, info -----------------------------------------------------------------------------------


def _list(client: Client, args: Namespace) -> int:
    jobs = list_jobs(client, None if args.all else args.limit, state=args.state)
    clock = master_clock(client)
    if args.json:
        print_json([job_json(job, clock) for job in jobs])
        return Status.DONE
    print_text(render_list(jobs, clock.now_s, screen_width()))
    totals = client.ask("status")["jobs"]
    total = sum(totals.values()) if args.state is None else totals.get(args.state, 0)
    if total > len(jobs):
        kind = f"{args.state} jobs" if args.state else "jobs"
        say(f"the newest {len(jobs)} of {total} {kind}; --all lists them all")
    return Status.DONE


def render_list(jobs: Sequence[JobSummary], now_s: float, width: int | None = None) -> str:
    """Lay out jobs as a table, the newest last."""
    if not jobs:
        return "no jobs"
    rows = [
        (
            job.number, job.name, job.state, sum(job.counts.values()),
            *[job.counts.get(str(state), 0) for state in _ENDS],
            duration(elapsed_s(job, now_s)), duration(now_s - job.created_at_s),
        )
        for job in jobs
    ]  # fmt: skip
    ends = [str(state).upper() for state in _ENDS]
    return table(("JOB", "NAME", "STATE", "TASKS", *ends, "TIME", "AGE"), rows, width)


def _results(job: JobSummary) -> str:
    """Describe the results of a job: how many it wants, still lacks, and has handed over."""
    text = f"{job.wanted + job.handed_over} wanted"
    if job.unsettled:
        text += f", {job.unsettled} not produced yet"
    if job.handed_over:
        text += f", {job.handed_over} handed over to the client and not retained"
    return text


def _info(client: Client, args: Namespace) -> int:
    jobs = chosen_jobs(client, args.jobs)
    clock = master_clock(client)
    for place, chosen in enumerate(jobs):
        answer = client.ask("job", {"job": chosen.id})
        job = read_summary(answer["summary"])
        names = answer["failed_tasks"]
        failures = [_failure(*found) for found in zip(answer["failures"], names, strict=True)]
        if args.json:
            first = answer["first_task"]
            details = {
                "open": answer["open"],
                "failures": failures,
                "first_task": None if first is None else with_command(first),
                "ran_on": answer["ran_on"],
                "history": [{"at_s": at_s, "event": text} for at_s, text in _events(answer)],
                "tasks": [with_command(row) for row in answer["tasks"]],
            }
            print_json(job_json(job, clock) | details)
        else:
            print_text("\n" * bool(place) + render_info(job, answer, failures, clock))
    return Status.DONE


def _failure(fields: Any, name: str | None) -> dict[str, Any]:
    object_id, reason, details = from_json(fields)
    return {
        "object": object_id, "task": name, "reason": reason, "story": details_text(details)
    }  # fmt: skip


def render_info(
    job: JobSummary, answer: dict[str, Any], failures: Sequence[dict[str, Any]], clock: MasterClock
) -> str:
    """Lay out one job: its command, workers, times and state, and the errors of failed results.
    `answer`: the master's reply to the query `job`.
    """
    counts = ", ".join(f"{n} {state}" for state, n in job.counts.items()) or "none"
    failed = [failure for failure in failures if failure["reason"] != "CANCELLED"]
    # A failed job has the reason of a failed result, which is shown below.
    shows_reason = job.reason and not (failed and job.state == str(JobState.FAILED))
    lines = [
        f"job {job.number} ({job.id})" + (f": {visible(job.name)}" if job.name else ""),
        f"state: {job.state}" + (f" ({_first_line(job.reason)})" if shows_reason else ""),
        *_what_ran(job, answer),
        f"tasks: {counts}",
        f"results: {_results(job)}",
        f"time: {_when(job, clock)}",
        *_history(answer),
    ]
    if rows := [with_command(row) for row in answer["tasks"]]:
        lines += ["", render_tasks(rows, screen_width())]
        if (total := sum(job.counts.values())) > len(rows):
            listing = f"`ciel task list {job.number} --all` lists all"
            lines.append(f"{len(rows)} of {total} tasks are shown; {listing}")
    for failure in failed:
        story = [f"  {line}" for line in visible_text(failure["story"]).split("\n")]
        producer = f" of task {visible(failure['task'])}" if failure["task"] else ""
        lines += [
            "",
            f"output {failure['object']}{producer} failed ({visible(failure['reason'])}):",
            *story,
        ]
    return "\n".join(lines)


def _what_ran(job: JobSummary, answer: dict[str, Any]) -> list[str]:
    """Return the command of the first task, and how many attempts each worker ran."""
    first, ran_on = answer["first_task"], answer["ran_on"]
    count = sum(job.counts.values())
    more = f" (the first of {count} tasks)" if count > 1 else ""
    lines = [] if first is None else [f"command: {run_text(with_command(first))}{more}"]
    if ran_on:
        shown = [f"{visible(worker)} ({_attempts(count)})" for worker, count in ran_on.items()]
        more = f" and {len(shown) - _WORKERS_SHOWN} more" if len(shown) > _WORKERS_SHOWN else ""
        lines.append(f"ran on: {', '.join(shown[:_WORKERS_SHOWN])}{more}")
    return lines


def _attempts(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _events(answer: dict[str, Any]) -> list[tuple[float, str]]:
    """Return the events of a job; a master of an earlier version sends none."""
    return [(at_s, text) for at_s, text in answer.get("history", {}).get("events", ())]


def _history(answer: dict[str, Any]) -> list[str]:
    lines = [f"  {clock_text(at_s)} {visible(text)}" for at_s, text in _events(answer)]
    if omitted := answer.get("history", {}).get("omitted"):
        lines.insert(len(lines) // 2, f"  ({omitted} more)")
    return ["history:", *lines] if lines else []


def _when(job: JobSummary, clock: MasterClock) -> str:
    submitted, ended_at_s = clock_text(job.created_at_s + clock.epoch_s), job.ended_at_s
    age = duration(clock.now_s - job.created_at_s)
    text = f"{duration(elapsed_s(job, clock.now_s))}, submitted at {submitted}, {age} ago"
    return text if ended_at_s is None else f"{text}, ended {clock_text(ended_at_s + clock.epoch_s)}"


def _first_line(text: str) -> str:
    first, _, rest = text.partition("\n")
    return visible(first) + (" …" if rest else "")


# --- wait, cancel, retry, rm ----------------------------------------------------------------------


def _wait(client: Client, args: Namespace) -> int:
    """Wait until jobs have ended (`all`: the unfinished ones); return their worst exit status."""
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
    """Return a progress line for a job, which is shown on a terminal only."""

    def counts() -> Counts:
        return Counts.of_states((client.last_news(job.id) or job).counts)

    return Progress(f"job {job.number}", counts, quiet=not sys.stderr.isatty())


def _cancel(client: Client, args: Namespace) -> int:
    chosen = chosen_jobs(client, args.jobs, lambda job: not has_ended(job))
    unfinished = [job for job in chosen if not has_ended(job)]
    for job in unfinished:
        client.cancel_job(job.id)
    ended = [client.wait_for_job(job.id, args.timeout) for job in unfinished]
    if args.json:
        _print_jobs(client, ended)
    for job in ended:
        say(f"job {job.number} is {job.state}")
    for job in chosen:
        if has_ended(job):
            say(f"job {job.number} had ended already: it is {job.state}")
    if not chosen:
        say("there are no unfinished jobs")
    return Status.DONE


def _retry(client: Client, args: Namespace) -> int:
    chosen = chosen_jobs(client, args.jobs, lambda job: job.state == str(JobState.FAILED))
    status = Status.DONE
    again = []
    for before in chosen:
        try:
            job = client.retry_job(before.id)
        except QueryError as error:
            say(str(error))
            status = Status.FAILED
            continue
        tasks = _failed_or_cancelled(before) - _failed_or_cancelled(job)
        say(f"job {job.number}: {tasks} {'task runs' if tasks == 1 else 'tasks run'} again")
        again.append(job)
    if not chosen:
        say("no job has failed")
    if args.wait:
        return max(status, _wait_for(client, again, args))
    if args.json:
        _print_jobs(client, again)
    return status


def _failed_or_cancelled(job: JobSummary) -> int:
    """Count the tasks of a job that failed or were cancelled."""
    return sum(job.counts.get(str(state), 0) for state in (TaskState.FAILED, TaskState.CANCELLED))


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
        say(f"did not remove unfinished jobs: {', '.join(map(str, left))}")
    return Status.FAILED if left and not named_all else Status.DONE


def _print_jobs(client: Client, jobs: Sequence[JobSummary]) -> None:
    clock = master_clock(client)
    print_json([job_json(job, clock) for job in jobs])


# --- output, log, graph ---------------------------------------------------------------------------


def _output(client: Client, args: Namespace) -> int:
    from ciel.cli.jobs.results import print_output

    return print_output(client, args)


def _log(client: Client, args: Namespace) -> int:
    from ciel.cli.jobs.log import print_log

    return print_log(client, args)


def _graph(client: Client, args: Namespace) -> int:
    from ciel.cli.graph.drawing import print_graph

    return print_graph(client, args)


# --- the command line -----------------------------------------------------------------------------


def _add_jobs(parser: ArgumentParser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="a number, A-B, last, all, a name")


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="list all jobs")
    parser.add_argument(
        "--limit",
        type=count,
        default=_LISTED,
        metavar="N",
        help="list the newest N jobs (default 20)",
    )
    parser.add_argument(
        "--state", choices=[str(state) for state in JobState], help="list only jobs in this state"
    )


def _add_wait(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="stop waiting after this time (90s, 10m)"
    )


def _add_cancel(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="stop waiting for a job after this time (90s, 10m), counted for each job in turn",
    )


def _add_retry(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument(
        "--failed",
        action="store_true",
        help="accepted, but not needed: retry always runs the failed and cancelled tasks",
    )
    parser.add_argument(
        "--wait", action="store_true", help="then wait for the jobs, as `ciel job wait` does"
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="stop waiting after this time (90s, 10m)"
    )


def _add_output(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="write each result to the file DIR/NUMBER instead"
    )
    parser.add_argument(
        "-f", "--follow", action="store_true",
        help="print results as they arrive until the job has ended; for jobs submitted with "
        "--follow, print outputs line by line",
    )  # fmt: skip


def _add_log(parser: ArgumentParser) -> None:
    _add_jobs(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue until the job has ended"
    )


def _add_graph(parser: ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a number, last, a name")
    parser.add_argument(
        "-o", dest="output", metavar="FILE", help="write to FILE, in the format of its suffix"
    )
    parser.add_argument(
        "--format",
        choices=("dot", "svg", "json"),
        help="the format (default: the suffix of FILE, or dot)",
    )


VERBS = {
    "list": Verb("list the newest jobs", _add_list, _list),
    "info": Verb("show the state of jobs, and why tasks failed", _add_jobs, _info, _SELECTORS),
    "wait": Verb(
        "wait until jobs have ended; exit with their status", _add_wait, _wait, _SELECTORS
    ),
    "output": Verb("print the results of jobs, in order", _add_output, _output, _SELECTORS),
    "log": Verb(
        "print what the programs of jobs wrote to standard error", _add_log, _log, _SELECTORS
    ),
    "graph": Verb("draw the tasks of a job and what they read", _add_graph, _graph),
    "cancel": Verb(
        "cancel jobs, and wait until their programs have ended", _add_cancel, _cancel, _SELECTORS
    ),
    "retry": Verb(
        "run the failed and cancelled tasks of jobs again", _add_retry, _retry, _SELECTORS
    ),
    "rm": Verb("remove ended jobs and their results", _add_jobs, _rm, _SELECTORS),
}
