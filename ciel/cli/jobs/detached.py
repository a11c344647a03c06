"""Reports a job that continues after the command that submitted it has ended."""

from __future__ import annotations

from ciel.cli.outcome import Status, say
from ciel.cli.output.printing import print_json, print_text
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.jobs import JobSummary


def report_detached(client: Client, job: Job, as_json: bool, verb: str = "wait") -> int:
    """Wait until the master has the whole job, and print its number; return the exit status.

    The message names the command `ciel job VERB` to use next.
    """
    from ciel.wire.descriptors import read_summary

    summary = read_summary(client.ask("jobs", {"job": job.id})[0])
    if as_json:
        print_summary(client, summary)
    else:
        print_text(str(summary.number))
        say(f"the job continues; ciel job {verb} {summary.number}")
    return Status.DONE


def print_summary(client: Client, summary: JobSummary) -> None:
    """Print the summary of a job, as JSON."""
    from ciel.cli.jobs.queries import job_json, master_clock  # few commands need it

    print_json({"job": job_json(summary, master_clock(client))})
