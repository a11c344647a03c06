"""Writes the graph of a job as DOT, JSON, or SVG: its tasks, their inputs, and their children."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from ciel.cli.graph.dot import draw_dot
from ciel.cli.graph.tasks import GraphObject, TaskNode, read_tasks
from ciel.cli.jobs.queries import MasterClock, chosen_jobs, job_json, master_clock
from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.output.files import output_file
from ciel.cli.output.printing import write_output
from ciel.client.client import Client
from ciel.core.errors import CielError
from ciel.core.jobs import JobSummary

_OF_ENDING: Final = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".json": "json"}
_WRITTEN_AT_ONCE = 1 << 16
_GRAPHVIZ: Final = "dot"


class GraphvizError(CielError):
    """Graphviz failed to lay out a graph."""


def print_graph(client: Client, args: Namespace) -> int:
    """Write the graph of one job into a file, or print it; return the exit status."""
    path = None if args.output in (None, "-") else Path(args.output)
    form = _format(args, path)
    if form == "svg":
        _require_graphviz()
    jobs = chosen_jobs(client, [args.job])
    if len(jobs) != 1:
        raise UsageError(f"{args.job!r} selects {len(jobs)} jobs, but a graph shows one; name one")
    (job,) = jobs
    tasks = read_tasks(client, job.id)
    if form == "json":
        parts = _json(job, master_clock(client), tasks)
    else:
        parts = draw_dot(_title(job), tasks)
    _write(path, _svg(parts) if form == "svg" else parts)
    if job.handed_over:
        say(
            f"{job.handed_over} tasks of job {job.number} are not shown: their results were handed "
            "over to the client"
        )
    return Status.DONE


def _format(args: Namespace, path: Path | None) -> str:
    """Return the format that the options or the suffix of the file name select."""
    if args.json and args.format not in (None, "json"):
        raise UsageError(f"--json and --format {args.format} contradict each other")
    if args.json or args.format:
        return args.format or "json"
    if path is None:
        return "dot"
    form = _OF_ENDING.get(path.suffix.lower())
    if form is None:
        endings = ", ".join(_OF_ENDING)
        raise UsageError(
            f"the suffix of {str(path)!r} is not a known format; use one of {endings}, or choose "
            "the format with --format"
        )
    return form


# --- formats --------------------------------------------------------------------------------------


def _title(job: JobSummary) -> str:
    return f"job {job.number}: {job.name}" if job.name else f"job {job.number}"


def _svg(dot: Iterable[str]) -> Iterator[str]:
    """Yield the drawing that Graphviz creates from DOT; raises GraphvizError."""
    with tempfile.TemporaryFile() as text:
        _write_blocks(dot, text.write)
        text.seek(0)
        done = subprocess.run([_GRAPHVIZ, "-Tsvg"], stdin=text, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise GraphvizError(f"Graphviz (dot -Tsvg) ended with {done.returncode}: {reason}")
    yield done.stdout.decode()


def _require_graphviz() -> None:
    if shutil.which(_GRAPHVIZ) is None:
        raise UsageError(
            "SVG needs the program dot of Graphviz, which is not installed (on Debian: apt install "
            "graphviz); or write the graph as text with --format dot, and draw it elsewhere"
        )


def _json(job: JobSummary, clock: MasterClock, tasks: Iterable[TaskNode]) -> Iterator[str]:
    """Yield one JSON object, with one line for each task."""
    yield f'{{"job": {_text(job_json(job, clock))}, "tasks": ['
    between = "\n"
    for task in tasks:
        yield between + _text(_task_json(task))
        between = ",\n"
    yield "\n]}\n"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _task_json(task: TaskNode) -> dict[str, Any]:
    fields = task._asdict()
    fields = {"task": fields.pop("id")} | fields
    fields["inputs"] = [_object_json(item) for item in task.inputs]
    fields["outputs"] = [_object_json(item) | {"wanted": item.wanted} for item in task.outputs]
    return fields


def _object_json(item: GraphObject) -> dict[str, Any]:
    return {
        "object": item.id,
        "state": item.state,
        "size_bytes": item.size_bytes,
        "made_by": item.maker,
    }


# --- output ---------------------------------------------------------------------------------------


def _write(path: Path | None, parts: Iterator[str]) -> None:
    """Print text, or write it to a file that is created under its name only when it is complete."""
    if path is None:
        _write_blocks(parts, write_output)
        return
    with output_file(path) as file:
        _write_blocks(parts, file.write)


def _write_blocks(parts: Iterable[str], write: Callable[[bytes], object]) -> None:
    """Join short texts into blocks, and write these."""
    block: list[str] = []
    length = 0
    for part in parts:
        block.append(part)
        length += len(part)
        if length > _WRITTEN_AT_ONCE:
            write("".join(block).encode(errors="backslashreplace"))
            block, length = [], 0
    write("".join(block).encode(errors="backslashreplace"))
