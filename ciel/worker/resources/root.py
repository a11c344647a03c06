"""All that a worker serves over HTTP, as one site."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ciel.access.keys import Key, Role
from ciel.core.errors import InvalidIdError
from ciel.core.ids import JobId, ObjectId, check_id
from ciel.net.errors import HttpError
from ciel.net.exposition import Metrics
from ciel.net.gate import Gate
from ciel.net.http import Answer, Request, Route, Routes, SecureSite
from ciel.storage.interface import ObjectStore
from ciel.worker.disk_jobs import Admit, at_once
from ciel.worker.logs import CHUNK_BYTES, JobLogs
from ciel.worker.metrics import WorkerMetrics
from ciel.worker.resources.control import Controls, add_controls
from ciel.worker.resources.data import BlockList, Data
from ciel.worker.resources.processes import add_processes
from ciel.worker.resources.uploads import Bringing, add_uploads
from ciel.worker.streams.growing import Streams

Figures = Callable[[], dict[str, dict[str, int]]]

_is_offset = re.compile(rb"\d{1,18}").fullmatch


class Log(Route):
    """What a job's programs complained here, from an offset on. With `wait=1` a reader who has all
    of it is answered when there is more, or with nothing after some 20 s.
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
    """Serves the standard output of a failed program, while the worker keeps it: at most 1 MiB from
    an offset on, nothing at the end.
    """

    needs_role = Role.READ

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept or Path(os.devnull)  # below which there is nothing

    def render_GET(self, request: Request) -> bytes:
        try:
            name = check_id(request.params["name"])
        except InvalidIdError as error:
            raise HttpError(400, str(error)) from None
        offset = request.args.get(b"offset", [b"0"])[0]
        if not _is_offset(offset):
            raise HttpError(400, "the offset must be a number of bytes")
        request.setHeader("Content-Type", "application/octet-stream")
        for beginning in ("stdout", "stdout.beginning"):  # the second is of a very long one
            try:
                with open(self._kept / name / beginning, "rb") as file:
                    file.seek(min(int(offset), os.fstat(file.fileno()).st_size))
                    return file.read(CHUNK_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise HttpError(500, f"it cannot be read: {error.strerror}") from None
        raise HttpError(404, "no output of that attempt is kept here any more")


class Health(Route):
    """Says that the daemon serves, and which it is."""

    needs_role = Role.READ
    worker = ""

    def render_GET(self, request: Request) -> bytes:
        return request.reply({"status": "ok", "worker": self.worker})


class Counters(Route):
    """What a worker has counted since it started, by what it is about."""

    needs_role = Role.READ

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def render_GET(self, request: Request) -> bytes:
        return request.reply(self._figures())


class WorkerSite:
    """Everything that a worker serves; `serve_as` tells it who it is, once its address is known."""

    def __init__(
        self,
        reactor: Any,
        key: Key,
        store: ObjectStore,
        uploaded: Callable[[ObjectId], None],
        logs: JobLogs,
        streams: Streams,
        *,
        kept: Path | None = None,
        admit: Admit = at_once,
        figures: Figures = dict,
        open_healthz: bool = False,
    ) -> None:
        self._gate = Gate(key.derive)
        self._health = Health()
        self._bringing = Bringing(reactor, store, uploaded, admit)
        self.routes = Routes()
        self.routes.add("/healthz", self._health)
        data = Data(store, streams)
        self.routes.add("/data/{id}", data)
        self.routes.add("/log/{job}", Log(logs))
        self.routes.add("/kept/{name}", KeptOutput(kept))
        self.routes.add("/api/v1/counters", Counters(figures))
        add_uploads(self.routes, self._bringing, data, BlockList(store))
        self.site: Any = SecureSite(reactor, self.routes, self._gate, open_healthz=open_healthz)

    def serve_as(self, netloc: str, worker: str = "") -> None:
        self._gate.serve_as(netloc)
        self._health.worker = worker
        self._bringing.netloc = netloc

    def control(self, controls: Controls, metrics: WorkerMetrics) -> None:
        """Serve what acts on the worker, now that it is there."""
        add_controls(self.routes, controls)
        add_processes(self.routes, controls.reactor, controls.service)
        self.routes.add("/metrics", Metrics(metrics.families))

    def close(self) -> None:
        """Give up what clients have not brought to its end."""
        self._bringing.close()
