"""The daemon of `ciel up --on` that brings workers as tasks wait, and lets them go.

It asks the master what waits, lets `launchers.scaling` decide, and has the launcher carry that out.
It writes its decisions, and the allocations, to a file in the directory of the cluster, which `ciel
launcher` shows. It keeps nothing else: after a crash, the launcher finds its allocations again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ciel import plugins
from ciel.access.access_file import AccessFile, process_start
from ciel.access.keys import Key
from ciel.access.paths import ACCESS_FILE_NAME
from ciel.access.settings import MasterLocation
from ciel.cli.daemons.lifeline import report_failure, report_ready
from ciel.client.errors import ClientError
from ciel.client.jobs.client import JobClient
from ciel.core.errors import CielError
from ciel.launchers.interface import (
    Allocation,
    Launcher,
    LauncherError,
    LauncherOptionError,
    Phase,
    Site,
)
from ciel.launchers.scaling import (
    Cancel,
    Command,
    Limits,
    Member,
    Nothing,
    Release,
    Request,
    Scaling,
    Seen,
    Waiting,
)

CONFIG: Final = "launcher.json"
"""The file with the options of the launcher, in the directory of the cluster."""
REPORT: Final = "launcher-report.json"
"""The file with the decisions and the allocations, for `ciel launcher`."""

TICK_S: Final = 0.5
"""The time between two queries of what waits; the master answers one in about 1 ms."""
DECISIONS_MAX: Final = 200
ENDED_MAX: Final = 100
_LINE_MAX_BYTES: Final = 4096
_RECONNECT_S: Final = "10"
_TROUBLE_PAUSE_S: Final = 2.0


def open_launcher(config: dict[str, Any], access: AccessFile, path: Path) -> Launcher:
    """Open the launcher that a configuration names. `path`: of the access file."""
    site = Site(
        access, path, path.parent, tuple(config["worker_options"]), config["time_limit_s"]
    )  # fmt: skip
    launcher: Launcher = plugins.load("ciel.launchers", config["on"])(
        site, config["options"], config["words"]
    )
    return launcher


class Report:
    """What `ciel launcher` shows: decisions, with their times and reasons, and allocations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS_MAX)
        self._ended: dict[str, dict[str, Any]] = {}
        self._workers: dict[str, str] = {}  # that have joined, by allocation
        self._cancelled: dict[str, str] = {}  # why each allocation was cancelled
        self._last = ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            earlier = json.loads(path.read_text())
            self._decisions.extend(earlier["decisions"])
            self._ended = {row["id"]: row for row in earlier["allocations"] if "ended_at_s" in row}

    def cancelled(self, ids: Sequence[str], why: str) -> None:
        """Record that allocations were cancelled: they have not failed."""
        self._cancelled.update(dict.fromkeys(ids, f"was cancelled: {why}"))
        self.decided("cancel", why, allocations=list(ids))

    def decided(self, what: str, why: str, **facts: Any) -> None:
        """Record a decision. If nothing changes again, only update the time and the reason."""
        row = {"at_s": round(time.time(), 3), "what": what, "why": why, **facts}
        if what == self._last == "nothing":
            row["since_s"] = self._decisions[-1].get("since_s", self._decisions[-1]["at_s"])
            self._decisions[-1] = row
        else:
            self._decisions.append(row)
            print(f"{what}: {why}", file=sys.stderr, flush=True)
        self._last = what

    def write(self, on: str, allocations: Sequence[Allocation], members: Sequence[Member]) -> None:
        """Write the file, atomically."""
        self._workers.update((member.allocation, member.id) for member in members)
        rows = []
        for found in allocations:
            row = {
                "id": found.id, "phase": found.phase.value,
                "reason": self._cancelled.get(found.id) or found.reason,
                "place": found.place, "worker": self._workers.get(found.id),
                "failed": found.phase is Phase.ENDED
                and found.id not in self._workers
                and found.id not in self._cancelled,
            }  # fmt: skip
            if found.phase is not Phase.ENDED:
                rows.append(row)
            elif found.id not in self._ended:
                self._ended[found.id] = {**row, "ended_at_s": round(time.time(), 3)}
        while len(self._ended) > ENDED_MAX:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._workers.pop(oldest, None)
            self._cancelled.pop(oldest, None)
        report = {
            "on": on, "written_at_s": round(time.time(), 3), "decisions": list(self._decisions),
            "allocations": [*self._ended.values(), *rows],
        }  # fmt: skip
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):  # a full disk must not end the workers
            temporary.write_text(json.dumps(report))
            temporary.replace(self._path)


class _Ended(BaseException):
    """A signal or the end of the parent requests that this process ends."""


class Autoscaler:
    """Connects a master, a launcher and the decisions."""

    def __init__(self, config: dict[str, Any], found: MasterLocation, directory: Path) -> None:
        access = AccessFile(
            found.url, found.control, found.cluster_id, found.key, os.getpid(),
            process_start(os.getpid()) or 0,
        )  # fmt: skip
        self._on = config["on"]
        self._found = found
        self._client: JobClient | None = None
        self._path = directory / ACCESS_FILE_NAME
        self._launcher = open_launcher(config, access, self._path)
        self._scaling = Scaling(Limits(**config["limits"]))
        self._report = Report(directory / REPORT)
        self._allocations: list[Allocation] = []
        self._listed_s = -1e9
        self._is_listed = False

    def run(self) -> None:
        """Decide again and again, until the parent ends."""
        try:
            while True:
                pause_s = TICK_S
                try:
                    self._step()
                except (ClientError, CielError) as error:
                    self._report.decided("nothing", f"the master does not answer: {error}")
                    self._disconnect()
                    pause_s = _TROUBLE_PAUSE_S
                except LauncherError as error:
                    self._listed_s = time.monotonic()  # the next query follows after `poll_s`
                    self._report.decided("nothing", f"it is unknown what runs: {error}")
                    pause_s = _TROUBLE_PAUSE_S
                if select.select([0], [], [], pause_s)[0] and not os.read(0, _LINE_MAX_BYTES):
                    return
        finally:
            self._disconnect()
            self._launcher.close()

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, topic: str) -> Any:
        if self._client is None:
            environ = {**os.environ, "CIEL_RECONNECT_S": _RECONNECT_S}
            self._client = JobClient(self._found, name="ciel autoscaler", environ=environ)
        return self._client.ask(topic)

    def _step(self) -> None:
        if not self._path.exists():
            return  # `ciel up` writes it when all daemons are ready; workers need it
        now_s = time.monotonic()
        if not self._is_listed or now_s - self._listed_s >= self._launcher.poll_s:
            self._is_listed = False
            self._allocations = self._launcher.allocations()
            self._listed_s, self._is_listed = now_s, True
        demand = self._ask("demand")
        members = [
            Member(
                row["worker"], row["allocation"], row["slots"], row["memory_bytes"],
                row["busy"], row["has_objects"], row["draining"],
            )
            for row in demand["workers"]
        ]  # fmt: skip
        seen = Seen(
            [Waiting(**row) for row in demand["waiting"]], members, self._allocations,
            self._launcher.size,
        )  # fmt: skip
        for command in self._scaling.decide(seen, time.monotonic()):
            self._carry_out(command)
        self._report.write(self._on, self._allocations, members)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Nothing(why):
                self._report.decided("nothing", why)
            case Request(workers, why):
                self._request(workers, why)
            case Cancel(ids, why):
                self._report.cancelled(ids, why)
                self._launcher.cancel(ids)
                self._is_listed = False
            case Release(workers, why):
                self._report.decided("release", why, workers=list(workers))
                for worker in workers:
                    self._drain(worker)

    def _request(self, count: int, why: str) -> None:
        self._is_listed = False  # also after an error: the request may have arrived
        try:
            ids = self._launcher.request(count)
        except LauncherError as error:
            self._scaling.request_failed(str(error), time.monotonic())
            self._report.decided("failed", str(error), asked=count)
            return
        self._scaling.requested(ids)
        self._report.decided("request", why, allocations=ids)

    def _drain(self, worker: str) -> None:
        assert self._client is not None
        try:
            self._client.change("drain", {"worker": worker, "timeout_s": None})
        except ClientError as error:
            self._report.decided("failed", f"worker {worker} is not released: {error}")


def _read_line() -> dict[str, Any]:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, _LINE_MAX_BYTES)
        if not data:
            raise _Ended
        line += data
    fields: dict[str, Any] = json.loads(line)
    return fields


def _end(number: int, frame: FrameType | None) -> None:
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    raise _Ended


def main(argv: list[str] | None = None) -> int:
    """Run until the parent ends or sends a signal; returns the exit status."""
    parser = argparse.ArgumentParser(prog="ciel-autoscaler")
    parser.add_argument("--embedded", action="store_true", required=True)
    parser.add_argument("--log", required=True)
    options = parser.parse_args(argv)
    directory = Path(options.log).parent
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        line = _read_line()
        found = MasterLocation(
            line["url"], line["control"], line["cluster_id"], Key.from_text(line["key"]),
            "ciel up",
        )  # fmt: skip
        config = json.loads((directory / CONFIG).read_text())
        try:
            autoscaler = Autoscaler(config, found, directory)
        except (LauncherError, plugins.PluginError, OSError) as error:
            report_failure(str(error), 2 if isinstance(error, LauncherOptionError) else 1)
            return 1
        report_ready({"on": config["on"]})
        autoscaler.run()
    except _Ended:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
