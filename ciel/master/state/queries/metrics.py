"""Metrics of the master.

They are counted as events happen, so that reading them takes the same time whatever the number of
jobs and tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from ciel.core.offers.resources import ONE
from ciel.master.state.machine import MasterMachine


class Metric(NamedTuple):
    """A metric. If it has several values, they differ by the value of its one label."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    label: str
    values: Iterable[tuple[str, float]]


def collect_metrics(machine: MasterMachine) -> list[Metric]:
    """Return all metrics of a master."""
    workers, members = machine.workers.values(), machine.membership
    slots = sum(node.facts.slots for node in workers)
    busy = sum(min(node.slots_used, node.facts.slots) for node in workers)
    queued = sum(max(node.slots_used - node.facts.slots, 0) for node in workers)
    jobs = [(str(state), count) for state, count in machine.job_table.totals.items()]
    tasks = [(str(state), count) for state, count in machine.job_table.task_totals.items()]
    attempts = machine.timeline.totals
    return [
        _gauge("ciel_workers", "Connected workers.", len(machine.workers)),
        _counter("ciel_workers_joined_total", "Workers that joined.", members.joined_count),
        _counter("ciel_workers_lost_total", "Workers that were lost.", members.lost_count),
        _gauge("ciel_slots", "Slots of all workers.", slots),
        _gauge("ciel_slots_busy", "Slots with an assigned task.", busy),
        _gauge("ciel_slots_ahead", "Slots' worth of tasks that are queued on workers.", queued),
        Metric(
            "ciel_resources", "gauge", "Named resources of all workers, by name.", "resource",
            _resources(node.capacity.resources for node in workers),
        ),
        Metric(
            "ciel_resources_used", "gauge", "Of them, what assigned tasks have.", "resource",
            _resources(node.resources_used for node in workers),
        ),
        Metric("ciel_jobs", "gauge", "Known jobs, by state.", "state", jobs),
        _counter("ciel_jobs_total", "Jobs that were submitted.", machine.job_table.count),
        Metric("ciel_tasks", "gauge", "Tasks of these jobs, by state.", "state", tasks),
        Metric(
            "ciel_attempts_total", "counter", "Attempts that ended, by outcome.", "ending",
            attempts.items(),
        ),
        _counter(
            "ciel_program_seconds_total", "Run time of their programs.", machine.timeline.run_s
        ),
        _gauge("ciel_objects", "Known objects.", len(machine.graph.objects)),
    ]  # fmt: skip


def _resources(of_workers: Iterable[Mapping[str, int]]) -> list[tuple[str, float]]:
    """Add the amounts of workers up, by name."""
    totals: Counter[str] = Counter()
    for amounts in of_workers:
        totals.update(amounts)
    return [(name, amount / ONE) for name, amount in sorted(totals.items())]


def _gauge(name: str, text: str, value: float) -> Metric:
    return Metric(name, "gauge", text, "", [("", value)])


def _counter(name: str, text: str, value: float) -> Metric:
    return Metric(name, "counter", text, "", [("", value)])
