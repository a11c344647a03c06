"""Lays out the table of workers, for `ciel worker list` and `ciel status`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ciel.cli.output.tables import duration, size_text, table


def render_workers(workers: Sequence[dict[str, Any]], width: int | None = None) -> str:
    """Lay out the master's reply to the query `workers`."""
    if not workers:
        return "no workers: nothing can run"
    rows = [
        (
            w["worker"], w["netloc"], w["slots"], w["running"], w["queued"], _memory(w),
            duration(w["silent_s"]) + _note(w),
        )
        for w in workers
    ]  # fmt: skip
    headings = ("WORKER", "ADDRESS", "SLOTS", "RUNNING", "QUEUED", "MEMORY", "HEARD")
    lines = [table(headings, rows, width)]
    for worker in workers:
        if about := _offers(worker):
            lines.append(f"{worker['worker']} offers {about}")
    return "\n".join(lines)


def _offers(worker: dict[str, Any]) -> str:
    """Return the resources and the labels of a worker; empty if it has none but its host."""
    texts = [
        f"{name} {of['used']:g}/{of['total']:g}"
        + (f" [{','.join(of['indices'])}]" if of["indices"] else "")
        for name, of in worker.get("resources", {}).items()
    ]
    labels = worker.get("labels", {}).items()
    texts += [f"{name}={value}" for name, value in labels if name != "host"]
    return ", ".join(texts)


def _note(worker: dict[str, Any]) -> str:
    if worker["suspicion"]:
        return " (suspected)"
    return " (draining)" if worker.get("draining") else ""


def _memory(worker: dict[str, Any]) -> str:
    """Return how much of a worker's memory its tasks have requested."""
    if not worker["memory_bytes"]:
        return "-"
    return f"{size_text(worker['memory_asked_bytes'])}/{size_text(worker['memory_bytes'])}"
