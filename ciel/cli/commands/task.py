"""`ciel task`: lists, shows, explains, cancels and retries the tasks of a job."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from ciel.cli.jobs.queries import chosen_jobs
from ciel.cli.jobs.task_table import how_it_ran, render_tasks, size_text
from ciel.cli.outcome import Status, UsageError, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import screen_width
from ciel.cli.parsing.options import count
from ciel.cli.parsing.selectors import describe, read_task
from ciel.cli.parsing.verbs import Verb, run_verb
from ciel.client.client import Client
from ciel.client.errors import QueryError
from ciel.core.refs import Failure, Reference, Value, locations_of
from ciel.core.tasks import TaskState
from ciel.execution.commands import with_command
from ciel.execution.report import logged_name, visible, visible_text
from ciel.wire.references import from_json

_LISTED = 100
_PLACE_MAX_DIGITS = 18
_SHOWN_AT_ONCE = 20
_SOME_TASKS = """\
TASK is JOB:TASK: a job's number, its id or last, and after the colon an element's number, a name, a
task's id, or a range of numbers (last:1-20).
"""
_SELECTORS = _SOME_TASKS + "A JOB alone means all its tasks.\n"
_SHOWN = f"{_SELECTORS}At most {_SHOWN_AT_ONCE} tasks are shown.\n"


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    return run_verb(
        "ciel task", "Shows the tasks of a job, cancels and retries them.", VERBS, words
    )


def _rows(
    client: Client, job_id: str, elements: range | None, state: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the tasks of a job, or of some elements of an array."""
    question: dict[str, Any] = {"job": job_id, "first": 0, "state": state}
    if elements is not None:
        question["elements"] = [elements[0], elements[-1], elements.step]
    while question["first"] is not None:
        page = client.ask("tasks", question)
        yield from map(with_command, page["tasks"])
        question["first"] = page["next"]


# --- list -----------------------------------------------------------------------------------------


def _list(client: Client, args: Namespace) -> int:
    selector = read_task(args.task)
    elements = selector.tasks
    if isinstance(elements, str):
        if not (elements.isdecimal() and len(elements) <= _PLACE_MAX_DIGITS):
            raise UsageError(
                f"{args.task[:80]!r} names one task; `ciel task info {args.task[:80]}` shows it. "
                "`ciel task list` accepts numbers, such as last:1-5"
            )
        elements = range(int(elements), int(elements) + 1)
    (job,) = chosen_jobs(client, [selector.job])
    found = _rows(client, job.id, elements, args.state)
    rows = list(found if args.all else islice(found, args.limit))
    more = next(found, None) is not None
    if args.json:
        print_json(rows)
    else:
        print_text(render_tasks(rows, screen_width()))
    if more:
        say(f"the first {len(rows)} tasks; --all lists them all")
    if job.handed_over:
        say(
            f"{job.handed_over} tasks of job {job.number} are not shown: their results were handed "
            "over to the client"
        )
    return Status.DONE


# --- info, explain --------------------------------------------------------------------------------


def _info(client: Client, args: Namespace) -> int:
    return _show(client, args, lambda task: task, render_info)


def _explain(client: Client, args: Namespace) -> int:
    keys = ("job", "task", "name", "state", "runs", "why", "story", "inputs")
    return _show(client, args, lambda task: {key: task[key] for key in keys}, render_explanation)


def _show(
    client: Client,
    args: Namespace,
    shape: Callable[[dict[str, Any]], dict[str, Any]],
    render: Callable[[dict[str, Any]], str],
) -> int:
    """Print each of the tasks, up to `_SHOWN_AT_ONCE` of them."""
    found, more = _chosen(client, args.task)
    tasks = [with_command(task) for task in found]
    for place, task in enumerate(tasks):
        for key in ("inputs", "outputs"):
            task[key] = [_object(ref) for ref in from_json(task[key])]
        if args.json:
            print_json(shape(task))
        else:
            print_text("\n" * bool(place) + render(task))
    if more:
        say(f"only the first {len(tasks)} tasks are shown; name others as JOB:TASK")
    return Status.DONE


def _log(client: Client, args: Namespace) -> int:
    """Print what tasks wrote to standard error: the lines of their job's log with their names."""
    from ciel.cli.jobs.log import print_lines

    selector = read_task(args.task)
    (job,) = chosen_jobs(client, [selector.job])
    if selector.tasks is None:
        return print_lines(client, [job], args)
    if isinstance(selector.tasks, str):
        tasks = [client.ask("task", {"job": job.id, "task": selector.tasks})]
    else:
        tasks = list(_rows(client, job.id, selector.tasks))
        if not tasks:
            raise UsageError(f"job {job.number} has no task {describe(selector.tasks)}")
    names = {logged_name(task["name"], task["task"]) for task in tasks}
    return print_lines(client, [job], args, names)


def _chosen(client: Client, text: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the master's descriptions of the tasks, and whether there are more tasks."""
    selector = read_task(text)
    (job,) = chosen_jobs(client, [selector.job])
    if isinstance(selector.tasks, str):
        return [client.ask("task", {"job": job.id, "task": selector.tasks})], False
    rows = _rows(client, job.id, selector.tasks)
    ids = [row["task"] for row in islice(rows, _SHOWN_AT_ONCE)]
    if not ids:
        which = f" {describe(selector.tasks)}" if selector.tasks is not None else ""
        raise UsageError(f"job {job.number} has no task{which}")
    tasks = [client.ask("task", {"job": job.id, "task": task_id}) for task_id in ids]
    return tasks, next(rows, None) is not None


def _object(ref: Reference) -> dict[str, Any]:
    """Describe an object: its state, and where workers store it.

    The state is `there` if the object exists, `failed`, or `expected` if no task has produced it.
    """
    if isinstance(ref, Failure):
        return {"object": ref.id, "state": "failed", "reason": ref.reason}
    if isinstance(ref, Value):
        return {"object": ref.id, "state": "there", "size_bytes": len(ref.content)}
    if places := sorted(locations_of(ref)):
        size_bytes = getattr(ref, "size_bytes", None)
        return {"object": ref.id, "state": "there", "size_bytes": size_bytes, "at": places}
    return {"object": ref.id, "state": "expected"}


def render_info(task: dict[str, Any]) -> str:
    """Lay out the facts about a task."""
    needs = task["needs"]
    requested = [f"{needs['slots']} {'slot' if needs['slots'] == 1 else 'slots'}"]
    for name, unit in (
        ("memory_bytes", "bytes of memory"), ("timeout_s", "s at most"), ("retries", "retries")
    ):  # fmt: skip
        if needs[name]:
            requested.append(f"{needs[name]:g} {unit}")
    if needs["priority"]:
        requested.append(f"priority {needs['priority']}")
    if needs.get("io"):
        requested.append(f"a permit of {needs['io']}")
    requested += [f"{amount:g} {name}" for name, amount in needs.get("resources", {}).items()]
    if needs.get("where"):
        requested.append(f"a worker where {needs['where']}")
    if needs.get("isolate"):
        requested.append(f"isolation {needs['isolate']}")
    if needs.get("image"):
        requested.append(f"the image {visible(needs['image'])}")
    has_ended = task["started_at_s"] is not None  # `how_it_ran` then names the worker
    place = f" on worker {task['worker']}" if task["worker"] and not has_ended else ""
    lines = [
        f"{_title(task)} ({task['task']})",
        f"state: {task['state']}, attempt {task['attempt']}{place}",
        *how_it_ran(task),
        f"executor: {visible(task['executor'])}, with {', '.join(requested)}",
    ]
    if task["parent"]:
        lines.append(f"created by: {task['parent']}")
    if task["children"]:
        lines.append(f"children: {task['children']}")
    inputs, left_out = task["inputs"], task["inputs_count"] - len(task["inputs"])
    lines += ["inputs:" if inputs else "inputs: none", *map(_object_line, inputs)]
    if left_out:
        lines.append(f"  and {left_out} more")
    return "\n".join([*lines, "outputs:", *map(_object_line, task["outputs"]), *_reasons(task)])


def render_explanation(task: dict[str, Any]) -> str:
    """Lay out why a task is in its state, its history, and which stores hold its inputs."""
    stored = [described for described in task["inputs"] if described.get("at")]
    inputs = ["what it reads:", *map(_object_line, stored)] if stored else []
    state = "running" if task["runs"] else task["state"]
    return "\n".join([f"{_title(task)} is {state}", *_reasons(task), *inputs])


def _title(task: dict[str, Any]) -> str:
    return f"task {visible(task['name'] or task['task'])} of job {task['job']}"


def _object_line(described: dict[str, Any]) -> str:
    size = size_text(described.get("size_bytes"))
    facts = [described["state"], visible(described.get("reason", "")), size]
    facts.append(" ".join(described.get("at", ())))
    return f"  {described['object']}: {', '.join(filter(None, facts))}"


def _reasons(task: dict[str, Any]) -> list[str]:
    lines = ["why:", *_indented(task["why"])]
    story = task["story"]
    if not story or (len(story) == 1 and task["state"] == str(TaskState.FAILED)):
        return lines  # the history of its only attempt repeats the reason
    return [*lines, "what happened:", *_indented(story)]


def _indented(texts: Sequence[str]) -> list[str]:
    return [f"  {line}" for text in texts for line in visible_text(text).split("\n")]


# --- cancel, retry --------------------------------------------------------------------------------


def _cancel(client: Client, args: Namespace) -> int:
    return _change(client, args, "cancel_task", "is cancelled")


def _retry(client: Client, args: Namespace) -> int:
    return _change(client, args, "retry_task", "runs again")


def _change(client: Client, args: Namespace, topic: str, done: str) -> int:
    """Cancel or retry tasks that are named one by one or by a range; print the result for each."""
    selector = read_task(args.task)
    if selector.tasks is None:
        verb = topic.removesuffix("_task")
        raise UsageError(
            f"name the tasks as JOB:TASK; ciel job {verb} applies to all tasks of a job"
        )
    (job,) = chosen_jobs(client, [selector.job])
    if isinstance(selector.tasks, str):
        ids = [selector.tasks]
    else:
        ids = [row["task"] for row in _rows(client, job.id, selector.tasks)]
        if not ids:
            raise UsageError(f"job {job.number} has no task {describe(selector.tasks)}")
    changed, status = [], Status.DONE
    for task_id in ids:
        try:
            task = client.change(topic, {"job": job.id, "task": task_id})
        except QueryError as error:
            say(str(error))
            status = Status.FAILED
            continue
        changed.append(task)
        say(f"task {visible(task['name'] or task['task'])} of job {job.number} {done}")
    if args.json:
        print_json(changed)
    return status


# --- the command line -----------------------------------------------------------------------------


def _add_task(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="JOB:TASK, JOB:A-B, or JOB")


def _add_some_tasks(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="JOB:TASK or JOB:A-B")


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument("task", metavar="JOB", help="a job, or a range of its elements: JOB:A-B")
    parser.add_argument(
        "--state", choices=[str(state) for state in TaskState], help="list only tasks in this state"
    )
    parser.add_argument("--all", action="store_true", help="list all tasks")
    parser.add_argument(
        "--limit",
        type=count,
        default=_LISTED,
        metavar="N",
        help="list the first N tasks (default 100)",
    )


def _add_log(parser: ArgumentParser) -> None:
    _add_task(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue until the job has ended"
    )


VERBS = {
    "list": Verb("list the tasks of a job", _add_list, _list),
    "info": Verb("show the state, the attempts and the outputs of tasks", _add_task, _info, _SHOWN),
    "explain": Verb("explain why tasks run, wait, or have failed", _add_task, _explain, _SHOWN),
    "cancel": Verb(
        "cancel some tasks of a job",
        _add_some_tasks,
        _cancel,
        f"{_SOME_TASKS}To cancel a whole job, use ciel job cancel.\n",
    ),
    "retry": Verb(
        "run failed or cancelled tasks again",
        _add_some_tasks,
        _retry,
        f"{_SOME_TASKS}To retry all tasks of a job, use ciel job retry.\n",
    ),
    "log": Verb("print what tasks wrote to standard error", _add_log, _log, _SELECTORS),
}
