"""Lays out tasks: their commands, where and when they ran, and how their programs ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any

from ciel.cli.output.tables import duration, table
from ciel.execution.report import command_text, visible

_HEADINGS = (
    "TASK", "NAME", "STATE", "ATTEMPT", "WORKER", "STARTED", "TIME", "EXIT", "RESULT", "COMMAND",
)  # fmt: skip


def render_tasks(rows: Sequence[dict[str, Any]], width: int | None = None) -> str:
    """Lay out tasks as a table, in the order of their creation."""
    if not rows:
        return "no tasks"
    cells = [
        (
            row["number"], row["name"], row["state"], row["attempt"], row["worker"] or "",
            "" if row["started_at_s"] is None else clock_text(row["started_at_s"]),
            "" if row["run_s"] is None else duration(row["run_s"]),
            exit_text(row["exit_status"]), row.get("failed") or size_text(row.get("size_bytes")),
            run_text(row),
        )
        for row in rows
    ]  # fmt: skip
    return table(_HEADINGS, cells, width)


def how_it_ran(task: dict[str, Any]) -> list[str]:
    """Return lines for one task: its command, where and when it ran, and how it ended."""
    lines = [f"command: {run_text(task)}"] if task["command_line"] else []
    if task["started_at_s"] is None:
        return lines
    where = f"on {worker_text(task)}"
    when = f"{clock_text(task['started_at_s'])}, for {duration(task['run_s'])}"
    lines.append(f"ran: {where}, from {when}")
    if task["exit_status"] is not None:
        lines.append(f"exit status: {exit_text(task['exit_status'])}")
    return lines


def run_text(task: dict[str, Any]) -> str:
    """Return the command of a task, or its executor and name if it has none."""
    if task["command_line"]:
        return visible(command_text(task["command_line"]))
    return visible(f"{task['executor']} {task['name']}".rstrip())


def worker_text(task: dict[str, Any]) -> str:
    """Return the host and the worker where a task ran."""
    return visible(f"{task['hostname'] or 'an unnamed host'}, worker {task['worker']}")


def exit_text(status: int | None) -> str:
    """Return how a program ended: its exit status, or the signal that killed it."""
    if status is None or status >= 0:
        return "" if status is None else str(status)
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def clock_text(at_s: float) -> str:
    """Return a time since the epoch as local time, with the day if that is not today."""
    at, now = time.localtime(at_s), time.localtime()
    is_today = at[:3] == now[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S", at)


def size_text(size_bytes: int | None) -> str:
    """Return the size of a result; "" if it is not known."""
    return "" if size_bytes is None else f"{size_bytes} bytes"
