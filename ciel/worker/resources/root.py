"""The HTTP site of a worker."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ciel.access.keys import Key, Role
from ciel.core.errors import InvalidIdError
from ciel.core.ids import JobId, check_id
from ciel.net.authorisation import Authorisation
from ciel.net.debugging import Debugging, add_debugging
from ciel.net.errors import HttpError
from ciel.net.http import Answer, Request, Route, Routes, SecureSite
from ciel.net.metrics import Metrics
from ciel.storage.interface import ObjectStore
from ciel.worker.checksums import Checksums
from ciel.worker.logs import CHUNK_BYTES, JobLogs
from ciel.worker.masters import Masters
from ciel.worker.metrics import Counts, WorkerMetrics
from ciel.worker.resources.control import Controls, add_controls
from ciel.worker.resources.data import BlockList, Data
from ciel.worker.resources.processes import add_processes
from ciel.worker.resources.succession import add_succession
from ciel.worker.resources.uploads import IncomingUploads, add_uploads
from ciel.worker.streams.growing import Streams

_is_offset = re.compile(rb"\d{1,18}").fullmatch


class Log(Route):
    """Returns the log of a job from an offset on.

    With `wait=1`, a request at the end of the log is answered when there is more text, or after
    some 20 s.
    """

    needs_role = Role.READ

    def __init__(self, logs: JobLogs) -> None:
        self._logs = logs

    def render_GET(self, request: Request) -> Answer:
        try:
            job = JobId(check_id(request.params["job"]))
        except InvalidIdError as error:
            raise HttpError(400, str(error)) from None
        offset = request.args.get(b"offset", [b"0"])[0]
        if not _is_offset(offset):
            raise HttpError(400, "the offset must be a number of bytes")
        request.setHeader("Content-Type", "text/plain; charset=utf-8")
        chunk = self._logs.read(job, int(offset))
        if chunk or request.args.get(b"wait") != [b"1"]:
            return chunk
        return self._logs.grown(job).addCallback(lambda _: self._logs.read(job, int(offset)))


class KeptOutput(Route):
    """Returns the standard output of a failed program, while the worker retains it.

    The response contains at most 1 MiB from an offset on; it is empty at the end.
    """

    needs_role = Role.READ

    def __init__(self, kept: Path) -> None:
        self._kept = kept

    def render_GET(self, request: Request) -> bytes:
        try:
            name = check_id(request.params["name"])
        except InvalidIdError as error:
            raise HttpError(400, str(error)) from None
        offset = request.args.get(b"offset", [b"0"])[0]
        if not _is_offset(offset):
            raise HttpError(400, "the offset must be a number of bytes")
        request.setHeader("Content-Type", "application/octet-stream")
        for beginning in ("stdout", "stdout.beginning"):  # the second name is for very long ones
            try:
                with open(self._kept / name / beginning, "rb") as file:
                    file.seek(min(int(offset), os.fstat(file.fileno()).st_size))
                    return file.read(CHUNK_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise HttpError(
                    500, f"the retained output cannot be read: {error.strerror}"
                ) from None
        raise HttpError(404, "this worker does not retain the output of that attempt any more")


class Health(Route):
    """Reports that the daemon serves, and the worker's id."""

    needs_role = Role.READ
    worker = ""

    def render_GET(self, request: Request) -> bytes:
        return request.reply({"status": "ok", "worker": self.worker})


class Counters(Route):
    """Returns the counters of a worker since its start, by subject."""

    needs_role = Role.READ

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def render_GET(self, request: Request) -> bytes:
        return request.reply(self._counts())


class WorkerSite:
    """Everything that a worker serves over HTTP.

    It is built in steps: a worker has to listen before it knows its address, which other parts
    need.
    """

    def __init__(self, reactor: Any, key: Key, *, open_healthz: bool = False) -> None:
        self._authorisation = Authorisation(key.derive)
        self._health = Health()
        self.routes = Routes()
        self.routes.add("/healthz", self._health)
        self.site: Any = SecureSite(
            reactor, self.routes, self._authorisation, open_healthz=open_healthz
        )

    def serve_as(self, netloc: str, worker: str = "") -> None:
        """Set the address that tickets name, and the worker's id."""
        self._authorisation.serve_as(netloc)
        self._health.worker = worker

    def serve_objects(
        self, store: ObjectStore, streams: Streams, uploads: IncomingUploads, checksums: Checksums
    ) -> None:
        """Serve objects, and accept uploads."""
        data = Data(store, streams, checksums)
        self.routes.add("/data/{id}", data)
        add_uploads(self.routes, uploads, data, BlockList(store))

    def serve_logs(self, logs: JobLogs, kept: Path) -> None:
        """Serve the logs of jobs, and the outputs of failed programs that are kept."""
        self.routes.add("/log/{job}", Log(logs))
        self.routes.add("/kept/{name}", KeptOutput(kept))

    def serve_succession(self, masters: Masters) -> None:
        """Serve the route by which masters name successions."""
        add_succession(self.routes, masters)

    def serve_controls(
        self, controls: Controls, metrics: WorkerMetrics, debugging: Debugging
    ) -> None:
        """Serve the routes that act on the worker, and its metrics."""
        add_debugging(self.routes, debugging)
        add_controls(self.routes, controls)
        add_processes(self.routes, controls.reactor, controls.operations)
        self.routes.add("/api/v1/counters", Counters(metrics.counts))
        self.routes.add("/metrics", Metrics(metrics.families))
