"""The checks of the launcher of workers: failed allocations, and an autoscaler that is away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from ciel.access.paths import current_path
from ciel.cli.doctor.findings import Finding, fault, note, ok
from ciel.cli.launchers.allocations import failed, read_report

AWAY_S: Final = 60.0
RECENT_S: Final = 3600.0
_CHECK: Final = "launcher"
_SHOWN_MAX: Final = 5


def check_launcher(environ: Mapping[str, str]) -> list[Finding]:
    """Check what the autoscaler of `ciel up` has reported; no findings without one."""
    link = current_path(environ)
    report = read_report(link.readlink().parent) if link.is_symlink() else None
    if report is None or report["written_at_s"] is None:
        return []
    found, now_s = [], time.time()
    if now_s - report["written_at_s"] > AWAY_S:
        away = f"the autoscaler has reported nothing for {now_s - report['written_at_s']:.0f} s"
        found.append(fault(_CHECK, away, "read autoscaler.log; `ciel down` and `ciel up` restart"))
    recent = [row for row in failed(report) if now_s - row["ended_at_s"] < RECENT_S]
    for row in recent[:_SHOWN_MAX]:
        found.append(note(_CHECK, f"allocation {row['id']} {row['reason']}"))
    if report["decisions"] and report["decisions"][-1]["what"] in ("failed", "nothing"):
        why = report["decisions"][-1]["why"]
        if report["decisions"][-1]["what"] == "failed" or "have failed" in why:
            found.append(fault(_CHECK, why, "ciel launcher explain shows the decisions before"))
    alive = sum(row["phase"] != "ended" for row in report["allocations"])
    return found or [ok(_CHECK, f"{report['on']}: {alive} allocations")]
