"""Adds Skywriting scripts to a job as tasks.

Each script is one task of the executor `swi`, without the tasks of `init` and `sync` that a package
has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ciel.client.jobs.client import JobClient
from ciel.client.jobs.job import Job
from ciel.core.refs import Future, Reference

_SESSION_OUTPUTS: Final = 2  # the value, and the session for the next entry


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment of scripts: `env`, `argv`, and the objects that `package` looks up."""

    env: Mapping[str, str] = field(default_factory=dict)
    argv: Sequence[str] = ()
    package: Mapping[str, Reference] = field(default_factory=dict)
    pieces: Sequence[Reference] = ()  # objects to which the package's objects refer


class Scripts:
    """Adds scripts to a job of `client`, all in the same surroundings."""

    def __init__(self, client: JobClient, job: Job, surroundings: Surroundings) -> None:
        self._client = client
        self._job = job
        self._given: dict[str, Any] = {
            "start_env": dict(surroundings.env),
            "start_args": list(surroundings.argv),
        }
        if surroundings.package:
            self._given["package_ref"] = job.package_object(surroundings.package)
            # The objects of the package exist as long as the master knows a task that names them.
            kept = job.named([*surroundings.package.values(), *surroundings.pieces])
            self._given["extra_dependencies"] = kept

    def add(self, content: bytes, name: str) -> Future:
        """Add a script, and return its value, as JSON. Raises UploadError."""
        return self._add(content, name, {}, 1)[0]

    def add_entry(
        self, content: bytes, name: str, session: Reference | None
    ) -> tuple[Future, Future]:
        """Add a script that continues a session (None: a new one). Raises UploadError.

        Return the value of the script, or null, and the session after it.
        """
        value, left = self._add(content, name, {"session_ref": session}, _SESSION_OUTPUTS)
        return value, left

    def _add(
        self, content: bytes, name: str, more: Mapping[str, Any], n_outputs: int
    ) -> list[Future]:
        source = self._client.upload_content(content, name)
        arguments = {"sw_file_ref": source, "sw_file_name": name, **self._given, **more}
        return self._job.add("swi", arguments, n_outputs=n_outputs, name=name)
