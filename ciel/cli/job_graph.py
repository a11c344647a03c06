"""`ciel job graph`: a job's tasks, what they read from each other, and who created whom."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ciel.cli.asking import MasterClock, chosen_jobs, elapsed_s, job_json, master_clock
from ciel.cli.graph_dot import draw_dot
from ciel.cli.graph_outline import Outline, Task, Thing, TooLargeError, read_task, states_text
from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.printing import duration, write_output
from ciel.client.client import Client
from ciel.core.jobs import JobSummary

FORMATS: Final = ("svg", "dot", "json")
_OF_ENDING = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".json": "json"}
_WRITTEN_AT_ONCE = 1 << 16


def print_graph(client: Client, args: Namespace) -> int:
    """Draw the graph of one job into a file, or print it; return the exit status."""
    path = None if args.output in (None, "-") else Path(args.output)
    form = _format(args, path)
    if form == "svg" and path is None and sys.stdout.isatty():
        raise UsageError(
            "a drawing cannot be shown on a terminal; name a file for it (-o job.svg), "
            "or have the graph as text with --format dot"
        )
    jobs = chosen_jobs(client, [args.job])
    if len(jobs) != 1:
        raise UsageError(f"{args.job!r} names {len(jobs)} jobs; a graph is of one")
    (job,) = jobs
    clock = master_clock(client)
    draw = {"svg": _svg, "dot": _dot, "json": _json}[form]
    parts = draw(job, clock, read_tasks(client, job.id))
    _write(path, parts)
    if job.handed_over:
        say(f"{job.handed_over} tasks of job {job.number} are forgotten: their results were taken")
    return Status.DONE


def _format(args: Namespace, path: Path | None) -> str:
    """Return the format that is asked for in words, or by how the file's name ends."""
    if args.json and args.format not in (None, "json"):
        raise UsageError(f"--json and --format {args.format} ask for different things")
    if args.json or args.format:
        return args.format or "json"
    if path is None:
        return "svg"
    form = _OF_ENDING.get(path.suffix.lower())
    if form is None:
        endings = ", ".join(_OF_ENDING)
        raise UsageError(
            f"{str(path)!r} does not say what to write; let it end in one of {endings}, "
            "or choose with --format"
        )
    return form


def read_tasks(client: Client, job_id: str) -> Iterator[Task]:
    """Yield a job's tasks in the order of their creation, asking for them page by page."""
    makers: dict[str, list[str]] = {}  # the tasks that were to make each object
    for row in _rows(client, job_id):
        takes_over = []
        for object_id, *_ in row["outputs"]:
            before = makers.setdefault(object_id, [])
            if row["parent"] in before:
                takes_over.append(object_id)
            before.append(row["task"])
        yield read_task(row, takes_over)


def _rows(client: Client, job_id: str) -> Iterator[dict[str, Any]]:
    """Yield what the master tells of each task, put together where it came in parts."""
    whole: dict[str, Any] | None = None
    first = None
    while True:
        page = client.ask("graph", {"job": job_id, "first": first})
        for row in page["tasks"]:
            if whole is not None and whole["task"] == row["task"]:
                row["inputs"] = whole["inputs"] + row["inputs"]
                row["outputs"] = whole["outputs"] + row["outputs"]
            elif whole is not None:
                yield whole
            whole = row
        first = page["next"]
        if first is None:
            break
    if whole is not None:
        yield whole


# --- formats --------------------------------------------------------------------------------------


def _title(job: JobSummary) -> str:
    return f"job {job.number}: {job.name}" if job.name else f"job {job.number}"


def _svg(job: JobSummary, clock: MasterClock, tasks: Iterable[Task]) -> Iterator[str]:
    from ciel.cli.graph_drawing import BOXES_MAX, LINES_MAX, Heading, draw_svg

    outline = Outline()
    for task in tasks:
        outline.add(task)
    try:
        boxes = outline.boxes(BOXES_MAX, LINES_MAX)
    except TooLargeError as error:
        raise UsageError(
            f"the graph of job {job.number} is too large to be drawn: it would have {error}, and "
            f"{BOXES_MAX:,} boxes with {LINES_MAX:,} lines are as much as one can look at; "
            "--format json and --format dot write all of it"
        ) from None
    facts = (
        job.state,
        states_text(job.counts) or "no tasks",
        duration(elapsed_s(job, clock.now_s)),
    )
    return draw_svg(Heading(_title(job), " · ".join(facts)), boxes)


def _dot(job: JobSummary, clock: MasterClock, tasks: Iterable[Task]) -> Iterator[str]:
    return draw_dot(_title(job), tasks)


def _json(job: JobSummary, clock: MasterClock, tasks: Iterable[Task]) -> Iterator[str]:
    """Yield one JSON object, a task a line."""
    yield f'{{"job": {_text(job_json(job, clock))}, "tasks": ['
    between = "\n"
    for task in tasks:
        yield between + _text(_task_json(task))
        between = ",\n"
    yield "\n]}\n"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _task_json(task: Task) -> dict[str, Any]:
    fields = task._asdict()
    fields = {"task": fields.pop("id")} | fields
    fields["inputs"] = [_thing_json(thing) for thing in task.inputs]
    fields["outputs"] = [_thing_json(thing) | {"wanted": thing.wanted} for thing in task.outputs]
    return fields


def _thing_json(thing: Thing) -> dict[str, Any]:
    return {
        "object": thing.id,
        "state": thing.state,
        "size_bytes": thing.size_bytes,
        "made_by": thing.maker,
    }


# --- where it goes --------------------------------------------------------------------------------


def _write(path: Path | None, parts: Iterator[str]) -> None:
    """Print text, or write it to a file that has its name only when it is whole."""
    if path is None:
        _write_blocks(parts, write_output)
        return
    if path.exists() and not path.is_file():  # a pipe, or a device
        with path.open("wb") as file:
            _write_blocks(parts, file.write)
        return
    begun = path.with_name(f".{path.name}.partial")
    try:
        with begun.open("wb") as file:
            _write_blocks(parts, file.write)
        begun.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        begun.unlink(missing_ok=True)


def _write_blocks(parts: Iterator[str], write: Callable[[bytes], object]) -> None:
    """Write many short texts at a time."""
    block: list[str] = []
    length = 0
    for part in parts:
        block.append(part)
        length += len(part)
        if length > _WRITTEN_AT_ONCE:
            write("".join(block).encode(errors="backslashreplace"))
            block, length = [], 0
    write("".join(block).encode(errors="backslashreplace"))
