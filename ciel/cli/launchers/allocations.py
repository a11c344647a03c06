"""Ends the allocations of a cluster, for `ciel down`; reads the report of its autoscaler."""

from __future__ import annotations

import contextlib
import json
import select
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ciel.access import access_file
from ciel.access.errors import AccessError
from ciel.access.paths import current_path
from ciel.cli.launchers.autoscaler import CONFIG, REPORT, open_launcher
from ciel.cli.launchers.options import read_config
from ciel.cli.outcome import say
from ciel.launchers.interface import Launcher, LauncherError, Phase
from ciel.plugins import PluginError

END_TIMEOUT_S: Final = 30.0
"""How long `ciel down` waits for the ends of allocations; programs get their grace meanwhile."""

_POLL_S: Final = 0.3


def end_allocations(path: Path) -> bool:
    """Cancel all allocations of the cluster with this access file, and wait for their ends.

    Return False, with a message, if some may go on. Its autoscaler must have ended.
    """
    config = read_config(path.parent)
    if config is None:
        return True
    try:
        launcher = open_launcher(config, access_file.read(path), path)
        with contextlib.closing(launcher):
            left = _end_all(launcher)
    except (LauncherError, PluginError) as error:
        say(f"cannot end the workers on {config['on']}: {error}")
        return False
    if left:
        say(
            f"allocations of {config['on']} have not ended within {END_TIMEOUT_S:g} s: "
            f"{', '.join(left[:10])}; end them by hand"
        )
        return False
    for name in (CONFIG, REPORT):
        (path.parent / name).unlink(missing_ok=True)
    return True


def _end_all(launcher: Launcher) -> list[str]:
    """Cancel all allocations; return the ids of allocations that are still alive after a time."""
    until_s, cancelled = time.monotonic() + END_TIMEOUT_S, set[str]()
    while alive := [a.id for a in launcher.allocations() if a.phase is not Phase.ENDED]:
        if new := [name for name in alive if name not in cancelled]:
            launcher.cancel(new)
            cancelled.update(new)
        elif time.monotonic() >= until_s:
            break
        select.select([], [], [], _POLL_S)  # no message comes when a job has ended
    return alive


def read_report(directory: Path) -> dict[str, Any] | None:
    """Return what the autoscaler of the cluster in a directory has reported; None without one."""
    if read_config(directory) is None:
        return None
    try:
        report: dict[str, Any] = json.loads((directory / REPORT).read_text())
    except FileNotFoundError:
        return {"on": "", "written_at_s": None, "decisions": [], "allocations": []}
    return report


def failed(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the allocations that have ended before their worker joined, the newest first."""
    yield from (row for row in reversed(report["allocations"]) if row["failed"])


def brings_workers(environ: Mapping[str, str], url: str) -> bool:
    """Whether a launcher brings the workers of the cluster at a URL."""
    link = current_path(environ)
    if not link.is_symlink() or read_config(link.readlink().parent) is None:
        return False
    try:
        return access_file.read(link).url == url
    except AccessError:
        return False
