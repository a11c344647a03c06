"""Checks how the tasks of a job file depend on each other, and orders them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ciel.cli.jobfiles.model import SAME_NUMBER, Fault, JobFile, Source, Task
from ciel.cli.jobfiles.reading import read
from ciel.cli.parsing.parser import suggestion
from ciel.cli.submission.elements import Template, substitute


def load(content: bytes) -> tuple[JobFile | None, list[Fault]]:
    """Return a checked job file, or None and all its errors in the order of their lines.

    Reads the files of `each_line`.
    """
    job, faults = read(content)
    if job is None:
        return None, faults
    tasks = {task.name: task for task in job.tasks}
    faults = [*_repeated(job.tasks), *_unknown(job.tasks, tasks)]
    if not faults:
        ordered, faults = _ordered(job.tasks, tasks)
        job = job._replace(tasks=ordered)
        faults += [*_wrong_runs(job.tasks), *_shared_files(job.tasks)]
    return (None if faults else job), sorted(faults)


def _repeated(tasks: Sequence[Task]) -> Iterator[Fault]:
    lines: dict[str, int] = {}
    for task in tasks:
        if task.name in lines:
            text = f"the task of line {lines[task.name]} is named {task.name}, too"
            yield Fault(task.line, text)
        lines.setdefault(task.name, task.line)


def _unknown(tasks: Sequence[Task], known: dict[str, Task]) -> Iterator[Fault]:
    for task in tasks:
        for source in task.sources:
            earlier = known.get(source.task)
            if earlier is None:
                hint = suggestion(source.task, known)
                yield Fault(task.line, f"{task.name} needs {source.task}, which is no task{hint}")
                continue
            if why := _missing_run(task, source, earlier):
                yield Fault(task.line, f"{task.name} needs {source}, but {why}")
        if len({*task.inputs, *task.files}) < len(task.inputs) + len(task.files):
            yield Fault(task.line, f"{task.name} has two files with one name")


def _missing_run(task: Task, source: Source, earlier: Task) -> str:
    """Explain which run of an earlier task does not exist; return "" if all do."""
    if not source.element:
        return ""
    if not earlier.is_array:
        return f"{earlier.name} is no array: write {earlier.name!r}"
    numbers = {element.number for element in earlier.elements}
    if source.element != SAME_NUMBER:
        return (
            "" if int(source.element) in numbers else f"{earlier.name} has no run {source.element}"
        )
    if not task.is_array:
        return f"{task.name} is no array itself: write {earlier.name}, or {earlier.name}:7"
    missing = next((each.number for each in task.elements if each.number not in numbers), None)
    return "" if missing is None else f"{earlier.name} has no run {missing}"


def _ordered(tasks: Sequence[Task], known: dict[str, Task]) -> tuple[list[Task], list[Fault]]:
    """Return the tasks, each after the tasks that it needs; name the tasks of a cycle."""
    done: dict[str, Task] = {}
    for first in tasks:
        path: list[tuple[Task, Iterator[str]]] = []
        _enter(path, first, done)
        while path:
            task, needed = path[-1]
            name = next(needed, None)
            if name is None:
                done[task.name] = task
                path.pop()
            elif name in (names := [each.name for each, _ in path]):
                cycle = [*names[names.index(name) :], name]
                text = f"these tasks wait for each other: {' -> '.join(cycle)}"
                return list(tasks), [Fault(known[name].line, text)]
            else:
                _enter(path, known[name], done)
    return list(done.values()), []


def _enter(path: list[tuple[Task, Iterator[str]]], task: Task, done: dict[str, Task]) -> None:
    if task.name not in done:
        path.append((task, iter(dict.fromkeys(source.task for source in task.sources))))


def _wrong_runs(tasks: Sequence[Task]) -> Iterator[Fault]:
    """Find the runs that could not start: their words are too long, or files are missing."""
    for task in tasks:
        template = Template(task.command, task.env)
        for element in task.elements:
            try:
                template.fill(element)
            except ValueError as error:
                yield Fault(task.line, f"run {element.number} of {task.name} {error}")
                break
            paths = [substitute(path, element) for path in task.files.values()]
            missing = next((path for path in paths if not os.path.isfile(path)), None)
            if missing is not None:
                text = f"run {element.number} of {task.name} needs {missing}, which is no file here"
                yield Fault(task.line, text)
                break


def _shared_files(tasks: Sequence[Task]) -> Iterator[Fault]:
    """Find runs whose outputs would be written to the same file."""
    owners: dict[str, str] = {}
    for task in tasks:
        for element in task.elements if task.out else ():
            shown = substitute(task.out, element)
            path = os.path.abspath(shown)
            run = f"run {element.number} of {task.name}"
            if path in owners:
                yield Fault(
                    task.line, f"out: {owners[path]} and {run} would both be written to {shown}"
                )
                break
            owners[path] = run
