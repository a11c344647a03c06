"""Runs the process that owns the cluster of `ciel up`, in the background.

`start` runs this module as a process in a new session, and sends it the configuration as JSON on
its standard input. The process answers with one line of JSON when the cluster is ready or cannot
start. The access file contains the process id, and `ciel down` ends the process. However the
process ends, its cluster ends with it. The journal and the work directories stay: only `ciel down`
and `ciel up --fresh` remove them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ciel.access.access_file import AccessFile, key_for_start, process_start
from ciel.access.errors import AccessError
from ciel.access.paths import drop_current, point_current
from ciel.cli.launchers.allocations import end_allocations
from ciel.cli.outcome import Status, conclude, say, status_of, text_of
from ciel.client.cluster.run_directories import await_release, can_resume, forget
from ciel.client.errors import ClusterError, ClusterOptionError
from ciel.core.errors import CielError

if TYPE_CHECKING:
    from ciel.client.cluster import LocalCluster

_READY_TIMEOUT_S = 20.0
_CONTINUE_TIMEOUT_S = 3600.0  # to read a long journal; Ctrl-C ends the wait
_RELEASE_TIMEOUT_S = 10.0  # for the daemons of an interrupted cluster to end
_LINE_MAX_BYTES = 64 << 10
_AUTOSCALER = ("autoscaler", "ciel.cli.launchers.autoscaler", ())


def start(config: dict[str, Any], log: Path) -> dict[str, Any]:
    """Start the process, and wait until its cluster is ready.

    Raises ClusterError, ClusterOptionError.
    """
    log_start_bytes = log.stat().st_size if log.exists() else 0
    config_fd, our_config_fd = os.pipe()
    our_ready_fd, ready_fd = os.pipe()
    appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            sys.executable,
            # The log tells users of `ps` which cluster it is.
            [sys.executable, "-P", "-m", "ciel.cli.daemons.supervisor", str(log)],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, config_fd, 0),
                (os.POSIX_SPAWN_DUP2, ready_fd, 1),
                (os.POSIX_SPAWN_OPEN, 2, str(log), appended, 0o600),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
    except BaseException:
        os.close(our_config_fd)
        os.close(our_ready_fd)
        raise
    finally:
        os.close(config_fd)
        os.close(ready_fd)
    try:
        with os.fdopen(our_config_fd, "w") as config_file:
            json.dump(config, config_file)
        ready = _read_ready(our_ready_fd, log, log_start_bytes, _timeout_s(log.parent))
    except BaseException:
        os.kill(pid, signal.SIGTERM)  # the child is not reaped yet, so its id is not reused
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(our_ready_fd)
    return ready


def _timeout_s(directory: Path) -> float:
    """Return how long the cluster in a directory may take to start."""
    return _CONTINUE_TIMEOUT_S if can_resume(directory) else _READY_TIMEOUT_S


def _read_ready(fd: int, log: Path, log_start_bytes: int, timeout_s: float) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    received = b""
    while b"\n" not in received:
        readable, _, _ = select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))
        if not readable:
            raise ClusterError(
                f"the cluster was not ready within {timeout_s:g} s", log, log_start_bytes
            )
        data = os.read(fd, _LINE_MAX_BYTES)
        if not data:
            raise ClusterError("the cluster ended before it was ready", log, log_start_bytes)
        received += data
        ready: dict[str, Any] = json.loads(received)
    if "error" in ready:
        kind = ClusterOptionError if ready["status"] == Status.USAGE else ClusterError
        raise kind(ready["error"])
    return ready


# --- in that process ------------------------------------------------------------------------------


class _Ended(BaseException):
    """A signal, such as the one from `ciel down`, requests that this process ends."""


def supervise() -> int:
    """Run the cluster that standard input describes, until a signal or the death of the cluster."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _end)
        config = json.load(sys.stdin)
        path = Path(config["access"])
        try:
            cluster = _open(config, path)
        except (CielError, AccessError, OSError) as error:
            status = status_of(error)
            _report({"error": text_of(error), "status": status})
            return status
        with cluster:
            facts = {"url": cluster.location.url, "description": cluster.describe()}
            _report(facts | cluster.restored)
            cluster.ended.wait()
        say(cluster.died)
        if cluster.was_shut_down:
            end_allocations(path)
            drop_current(os.environ, path)
            return Status.DONE
        # The link stays: the next `ciel up` continues the cluster.
        return Status.NO_MASTER
    except _Ended:
        return Status.DONE  # `ciel down` removes the link; after other signals it stays, too


def _open(config: dict[str, Any], path: Path) -> LocalCluster:
    """Start the cluster, and leave its access file at `path`."""
    from ciel.client.cluster import LocalCluster

    directory = path.parent
    os.chdir(directory)
    is_continued = can_resume(directory)
    if is_continued:
        await_release(directory, _RELEASE_TIMEOUT_S)
    try:
        cluster = LocalCluster(
            workers=config["workers"], slots=config["slots"], store=config["store"],
            listen=config["listen"], directory=directory, identity=key_for_start(path),
            verify=config["verify"], switches=config["switches"],
            journal_sync=config["journal_sync"], resumable=True,
            services=[_AUTOSCALER] if config["on"] else [],
            start_timeout_s=_timeout_s(directory), **config["patience"],
        )  # fmt: skip
    except BaseException:
        if not is_continued:
            forget(directory)
        raise
    with contextlib.ExitStack() as undo:
        undo.callback(cluster.close)
        found = cluster.location
        start = process_start(os.getpid()) or 0
        AccessFile(
            found.url, found.control, found.cluster_id, found.key, os.getpid(), start
        ).write(path)  # fmt: skip
        point_current(os.environ, path)
        undo.pop_all()
    return cluster


def _end(number: int, frame: FrameType | None) -> None:
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # nothing may interrupt the end
    raise _Ended


def _report(fields: dict[str, Any]) -> None:
    """Answer `ciel up`, which may have ended, and close its pipes."""
    try:
        os.write(1, json.dumps(fields).encode() + b"\n")
    except BrokenPipeError:
        pass
    null_fd = os.open(os.devnull, os.O_RDWR)
    os.dup2(null_fd, 0)
    os.dup2(null_fd, 1)
    os.close(null_fd)


if __name__ == "__main__":
    sys.exit(conclude(supervise))
