"""The key-value base and the services of a cluster, as its daemons deal with them.

Workers tell their tasks where the base is, and which keys open it and call services. The master
removes the rows of jobs that it does not know any more.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from twisted.internet.defer import inlineCallbacks
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread

from ciel import plugins
from ciel.access.keys import Key, Role
from ciel.cli.daemons.process import log
from ciel.execution.environment import (
    CLUSTER,
    KV_CLUSTER,
    KV_KEY_FILE,
    KV_URL,
    MASTER,
    SERVICE_HOST,
    SERVICE_KEY_FILE,
)
from ciel.state.batches import Delete, end_of_prefix
from ciel.state.errors import KeyMissingError, KvError
from ciel.state.finding import open_base
from ciel.state.names import job_of, prefix_of_job, prefix_of_jobs

SWEEP_S: Final = 5.0


def kv_url(text: str) -> str:
    """Check the URL of a base (an argparse type); empty: there is none."""
    try:
        if text:
            plugins.load("ciel.kv", urlsplit(text).scheme)
    except (plugins.PluginError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{error}; `pip install 'ciel[kv]'`?") from None
    return text


def kv_environment(url: str, directory: Path, key: Key, cluster_id: str) -> dict[str, str]:
    """Return the variables for tasks; write the key of the role `kv` to a file in a directory.

    A worker that has only the key of its role opens bases with that.
    """
    if not url:
        return {}
    path = _write_key(directory / "kv-key", key.derive(Role.KV) or key)
    return {KV_URL: url, KV_KEY_FILE: path, KV_CLUSTER: cluster_id}


def service_environment(
    control: str, host: str, directory: Path, key: Key, cluster_id: str
) -> dict[str, str]:
    """Return the variables for services; write the key of their role to a file in a directory.

    A worker that has only the key of its role cannot run services, and adds no variables.
    """
    own = key.derive(Role.SERVICE)
    if own is None:
        return {}
    path = _write_key(directory / "service-key", own)
    return {MASTER: control, CLUSTER: cluster_id, SERVICE_KEY_FILE: path, SERVICE_HOST: host}


def _write_key(path: Path, key: Key) -> str:
    """Write a key to a file that only its owner can read; return its path."""
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(key.text() + "\n")
    return str(path)


class JobState:
    """Looks for rows of removed jobs now and then, in a thread.

    A job is known before its tasks can write, and no id is used twice. So a job that has rows and
    is unknown afterwards was removed. Rows of other clusters, which may share the base, stay.
    """

    def __init__(
        self, reactor: Any, url: str, key: Key, cluster_id: str, is_known: Callable[[str], bool]
    ) -> None:
        self._url = url
        self._cluster_id = cluster_id
        self._key = key.derive(Role.KV) or key
        self._is_known = is_known
        self._repeated = LoopingCall(self._sweep)
        self._repeated.clock = reactor
        self._repeated.start(SWEEP_S)

    def close(self) -> None:
        if self._repeated.running:
            self._repeated.stop()

    @inlineCallbacks
    def _sweep(self) -> Any:
        try:
            found = yield deferToThread(self._find)
            gone = [job_id for job_id in found if not self._is_known(job_id)]
            if gone:
                yield deferToThread(self._remove, gone)
        except (KvError, OSError) as error:
            log.warn("the rows of ended jobs are not removed: {error}", error=error)

    def _find(self) -> list[str]:
        """Return the ids of jobs that have rows."""
        found: list[str] = []
        jobs = prefix_of_jobs(self._cluster_id)
        first, last = jobs, end_of_prefix(jobs)
        with open_base(self._url, self._key) as base:
            while (row := next(iter(base.scan(first, last)), None)) is not None:
                found.append(job_of(row[0]))
                first = end_of_prefix(prefix_of_job(self._cluster_id, found[-1])) or b"\xff"
                if not base.capabilities.is_ordered:
                    return list({job_of(key) for key, _ in base.scan(jobs, last)})
        return found

    def _remove(self, job_ids: list[str]) -> None:
        with open_base(self._url, self._key) as base:
            for job_id in job_ids:
                prefix = prefix_of_job(self._cluster_id, job_id)
                for key, _ in base.scan(prefix, end_of_prefix(prefix)):
                    try:
                        base.apply([Delete(key)])
                    except KeyMissingError:
                        pass  # its lifetime has ended
