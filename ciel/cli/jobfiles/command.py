"""Implements `ciel submit --file`: checks a job file, prints its commands, or runs them."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from contextlib import closing
from functools import partial

from ciel.cli.connection import connect, connect_or_start
from ciel.cli.jobfiles.model import JobFile, Task
from ciel.cli.jobfiles.planning import load
from ciel.cli.jobfiles.results import Results
from ciel.cli.jobfiles.submission import Submission
from ciel.cli.jobs.detached import print_summary, report_detached
from ciel.cli.outcome import OF_JOB_STATE, Status, UsageError, cancelling, say
from ciel.cli.output.printing import print_text, write_output
from ciel.cli.output.progress import Progress
from ciel.cli.output.tables import count_text, cut
from ciel.cli.submission.elements import Element, Template
from ciel.cli.submission.followed import predecessors
from ciel.cli.submission.halting import BY_MAX_FAILS
from ciel.client.client import Client
from ciel.client.errors import JobEndedError
from ciel.client.jobs.caller_context import caller_context
from ciel.core.jobs import JOB_NAME_MAX_LENGTH
from ciel.core.scheduling import read_scheduling
from ciel.core.tasks import DEFAULT_NEEDS, LIMITS
from ciel.execution.report import visible

_SHOWN_MAX_LENGTH = 100


def submit_file(args: argparse.Namespace) -> int:
    """Run the tasks of a job file as one job; unless `--detach` is given, wait for them."""
    try:
        with open(args.file, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"--file {args.file}: {error.strerror}") from None
    job, faults = load(content)
    lines = [f"{args.file}:{fault.line}: {fault.text}" for fault in faults]
    if args.check and job is None:
        print_text("\n".join(lines))
        return Status.FAILED
    if job is None:
        raise UsageError("\n".join(lines))
    if args.check:
        print_text("\n".join(_summary(job)))
        return Status.DONE
    if args.dry_run:
        for task in job.tasks:
            template = Template(task.command, task.env)
            text = "".join([f"{_command(template, task, each)}\n" for each in task.elements])
            write_output(os.fsencode(text))
        return Status.DONE
    if args.detach and (with_out := [task.line for task in job.tasks if task.out]):
        text = "out needs a command that waits for the job; remove --detach"
        raise UsageError(f"{args.file}:{with_out[0]}: {text}")
    with closing((connect if args.detach else connect_or_start)(args, "ciel submit")) as client:
        return _run(client, job, args)


def _run(client: Client, content: JobFile, args: argparse.Namespace) -> int:
    name = args.name or content.name or os.path.basename(args.file)
    job = client.job(
        name[:JOB_NAME_MAX_LENGTH], detached=args.detach, keep=args.keep or content.keep,
        store=args.store, scheduling=read_scheduling(args.policy),
        context=caller_context(content.cwd, scratch=content.cwd == "", env=None),
        after=predecessors(client, args),
        max_fails=args.max_fails if args.max_fails >= 0 else content.max_fails,
    )  # fmt: skip
    with cancelling(client, job):
        submission = Submission(client, job, content)
        results = Results(client, job, submission, as_json=args.json)
        results.clear()
        submission.submit()
        if args.detach:
            return report_detached(client, job, args.json)
        progress = Progress(job.name, results.counts, quiet=args.quiet, has_bar=args.bar)
        with progress:
            try:
                for run, ref in results.arriving():
                    progress.aside(partial(results.put, run, ref))
            except JobEndedError as error:
                if not error.reason.endswith(BY_MAX_FAILS):
                    raise
            summary = job.wait()
    if OF_JOB_STATE[summary.state] == Status.CANCELLED:
        if not summary.reason.endswith(BY_MAX_FAILS):
            raise JobEndedError(summary.number, summary.state, summary.reason)
        say(f"the job was stopped: {summary.reason}")
    results.list_failures()
    if args.json:
        print_summary(client, summary)
    return Status.FAILED if results.failed_count else OF_JOB_STATE[summary.state]


# --- what would run -------------------------------------------------------------------------------


def _command(template: Template, task: Task, element: Element) -> str:
    words, env = template.fill(element)
    return " ".join([*(f"{name}={shlex.quote(env[name])}" for name in task.env), shlex.join(words)])


def _summary(job: JobFile) -> Iterator[str]:
    """Describe each task in some lines: its first command, its predecessors and its needs."""
    counts = f"{count_text(len(job.tasks), 'task')}, {count_text(job.run_count, 'run')}"
    yield f"{job.name}: {counts}" if job.name else counts
    for task in job.tasks:
        times = f" ({count_text(len(task.elements), 'run')})" if task.is_array else ""
        yield f"{task.name}{times}"
        for element in task.elements[:1]:
            text = _command(Template(task.command, task.env), task, element)
            yield f"  runs   {cut(visible(text), _SHOWN_MAX_LENGTH)}"
        read = [*task.stdin, *task.inputs.values()]
        for what, sources in (("after", task.after), ("reads", read)):
            if sources:
                yield f"  {what}  {', '.join(map(str, sources))}"
        if task.needs != DEFAULT_NEEDS:
            yield f"  needs  {', '.join(_needs(task))}"
        if task.out:
            yield f"  out    {task.out}"


def _needs(task: Task) -> Iterator[str]:
    for limit in LIMITS:
        value = getattr(task.needs, limit.name)
        if value != getattr(DEFAULT_NEEDS, limit.name):
            shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
            yield f"{limit.option.removeprefix('--') or limit.name}={shown}"
