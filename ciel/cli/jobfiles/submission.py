"""Submits the tasks of a job file as tasks of one job.

A run that needs all runs of an array waits for one object in place of them, which a task of the
executor `sync` produces: otherwise two arrays of 10,000 runs would have 100 million dependencies.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ciel.cli.jobfiles.model import SAME_NUMBER, JobFile, Source, Task
from ciel.cli.submission.elements import Element, Template, substitute
from ciel.cli.submission.programs import program_of
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.refs import Future, Reference
from ciel.core.tasks import Mentions

_TOGETHER: Final = 1000
"""The number of runs whose end one task awaits: its arguments have some 100 KB."""


class Run(NamedTuple):
    """One run of a task, and its standard output."""

    task: Task
    element: Element
    output: Future

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.task.name}:{self.element.number}" if self.task.is_array else self.task.name


class Submission:
    """The runs of a job file in one job."""

    def __init__(self, client: Client, job: Job, content: JobFile) -> None:
        self._client = client
        self._job = job
        self._uploads: dict[str, Reference] = {}  # by path
        self._joins: dict[str, Reference] = {}  # by task: the outputs of all its runs
        self._ends: dict[str, Reference] = {}  # by task: exists when all its runs have ended
        self._outputs: dict[str, dict[str, Future]] = {}  # by task and number of the run
        self._env = dict(content.env)
        self.content = content
        self.runs: list[Run] = []

    def submit(self) -> None:
        """Add all runs, want their outputs, and close the job; raises UploadError, UsageError."""
        for task in self.content.tasks:
            template = Template(
                program_of(task.command, {name: Path(path) for name, path in task.files.items()}),
                self._env | dict(task.env),
            )
            outputs = self._outputs[task.name] = {}
            for element in task.elements:
                run = self._run(task, element, template)
                outputs[str(element.number)] = run.output
                self.runs.append(run)
        self._job.want([run.output for run in self.runs])
        self._job.close()

    def _run(self, task: Task, element: Element, template: Template) -> Run:
        argv, env = template.fill(element)
        sent = {name: substitute(path, element) for name, path in task.files.items()}
        files = {name: self._upload(path) for name, path in sent.items()}
        for name, source in task.inputs.items():
            found = self._found(source, element)
            files[name] = found[0] if len(found) == 1 else self._joined(source, found)
        output = self._job.run(
            argv,
            inputs=[ref for source in task.stdin for ref in self._found(source, element)],
            files=files,
            env=env,
            cwd=task.cwd if not task.cwd else os.path.abspath(substitute(task.cwd, element)),
            executables=[name for name, path in sent.items() if os.access(path, os.X_OK)],
            needs=task.needs,
            name=f"{task.name}:{element.number}" if task.is_array else task.name,
            after=[self._end(source, element) for source in task.after],
        )
        return Run(task, element, output)

    def _found(self, source: Source, element: Element) -> list[Reference]:
        """Return the outputs that a run reads."""
        outputs = self._outputs[source.task]
        if not source.element:
            return list(outputs.values())
        return [outputs[str(element.number) if source.element == SAME_NUMBER else source.element]]

    def _end(self, source: Source, element: Element) -> Reference:
        """Return an object that exists when the runs that a run follows have ended."""
        found = self._found(source, element)
        if source.element or len(found) == 1:
            return found[0]
        if source.task not in self._ends:
            while len(found) > 1:
                found = [
                    self._sync(source.task, found[start : start + _TOGETHER])
                    for start in range(0, len(found), _TOGETHER)
                ]
            self._ends[source.task] = found[0]
        return self._ends[source.task]

    def _sync(self, name: str, refs: Iterable[Reference]) -> Future:
        refs = list(refs)
        return self._job.add(
            "sync", {"args": {"inputs": refs}}, mentions=Mentions.INPUTS, name=f"end of {name}",
            apart=refs,
        )[0]  # fmt: skip

    def _joined(self, source: Source, refs: Iterable[Reference]) -> Reference:
        """Return an object with the outputs of all runs of an array, in their order."""
        if source.task not in self._joins:
            self._joins[source.task] = self._job.run(
                ["cat"], inputs=list(refs), cwd="", name=f"outputs of {source.task}"
            )
        return self._joins[source.task]

    def _upload(self, path: str) -> Reference:
        if path not in self._uploads:
            self._uploads[path] = self._client.upload(path)
        return self._uploads[path]
