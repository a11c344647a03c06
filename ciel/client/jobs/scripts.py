"""Skywriting scripts as tasks of a job: one task of the `swi` executor for each, without the
`init` and `sync` that a package has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ciel.client.jobs.client import JobClient
from ciel.client.jobs.job import Job
from ciel.core.refs import Future, Reference

_SESSION_OUTPUTS: Final = 2  # the value, and what the next entry goes on from


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What scripts find when they start: `env`, `argv`, and what `package` looks up."""

    env: Mapping[str, str] = field(default_factory=dict)
    argv: Sequence[str] = ()
    package: Mapping[str, Reference] = field(default_factory=dict)
    pieces: Sequence[Reference] = ()  # what its objects name


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
            # What is in the package is kept for as long as a task that names it is known.
            kept = job.named([*surroundings.package.values(), *surroundings.pieces])
            self._given["extra_dependencies"] = kept

    def add(self, content: bytes, name: str) -> Future:
        """Add a script; what is returned will be its value as JSON. Raises UploadError."""
        return self._add(content, name, {}, 1)[0]

    def add_entry(
        self, content: bytes, name: str, session: Reference | None
    ) -> tuple[Future, Future]:
        """Add a script that goes on from where `session` was left, None at first. What is returned
        will be its value, or null, and the session as it left it. Raises UploadError.
        """
        value, left = self._add(content, name, {"session_ref": session}, _SESSION_OUTPUTS)
        return value, left

    def _add(
        self, content: bytes, name: str, more: Mapping[str, Any], n_outputs: int
    ) -> list[Future]:
        source = self._client.upload_content(content, name)
        arguments = {"sw_file_ref": source, "sw_file_name": name, **self._given, **more}
        return self._job.add("swi", arguments, n_outputs=n_outputs, name=name)
