"""Reads jobs that are submitted over HTTP, each complete in one request body.

There are two forms. The form of the original CIEL is a root task with its private data, in JSON
instead of pickle. The form of this project is a list of tasks that may read each other's outputs. A
body becomes a `Submission`, or raises `InvalidSubmissionError`; this module submits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ciel.core.errors import CielError, InvalidIdError, InvalidNeedError
from ciel.core.events import COPIES_MAX, AddTask
from ciel.core.ids import ID_MAX_LENGTH, JobId, ObjectId, job_output_id, root_task_id
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, JobSpec
from ciel.core.naming import all_references
from ciel.core.refs import REFERENCE_TYPES, Future, Reference, Value
from ciel.core.scheduling import Scheduling, read_scheduling
from ciel.core.tasks import (
    DEFAULT_NEEDS,
    Mentions,
    Needs,
    TaskSpec,
    read_needs,
)
from ciel.wire import codec
from ciel.wire.descriptors import OUTPUTS_MAX, make_task, read_ids
from ciel.wire.references import from_json, to_json

TASKS_MAX: Final = 1000
"""The number of tasks in one body: adding them takes the master about 30 ms."""
NAMES_MAX: Final = 5000
"""The number of inputs and outputs of the tasks in one body: adding them takes about 30 ms, too."""
EXECUTOR_MAX_LENGTH: Final = 64
NAME_MAX_LENGTH: Final = 300

PLAIN_PROGRAMS: Final = frozenset(("stdinout", "env", "environ", "java", "cso", "tes"))
"""Executors whose programs never see an id, so that their outputs cannot name objects. The outputs
of all other executors are assumed to name objects."""

_ROOT_KEYS: Final = frozenset(("handler", "dependencies", "task_private", "expected_outputs"))
_IGNORED_KEYS: Final = frozenset(
    ("event_index", "parent", "scheduling_class", "scheduling_type", "worker_private", "workers")
)  # keys of the original's descriptors without a meaning here
_JOURNAL_OPTIONS: Final = frozenset(("journal", "journal_sync_buffer"))  # ignored as well
_TASK_KEYS: Final = frozenset(("name", "executor", "arguments", "outputs", "needs", "sees_errors"))
_OUTPUT: Final = "__output__"


class InvalidSubmissionError(CielError):
    """The body of a job is invalid; `where` is the wrong key."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"{where}: {reason}")


class Submission(NamedTuple):
    """A complete job. `outputs`: the outputs of each named task.

    `copies`: so many workers hold each upload that the tasks read.
    """

    spec: JobSpec
    tasks: tuple[AddTask, ...]
    wanted: tuple[ObjectId, ...]
    outputs: dict[str, list[ObjectId]]
    copies: int = 1


# --- the original's form --------------------------------------------------------------------------


class Root(NamedTuple):
    """A root task in the original's form. If `private` is a reference, it has to be fetched."""

    handler: str
    dependencies: list[Reference]
    expected_outputs: tuple[ObjectId, ...]
    private: dict[str, Any] | Reference
    scheduling: Scheduling


def read_root(body: Mapping[str, Any]) -> Root:
    """Read the body of a job in the original's form, with decoded references."""
    root = body.get("root_task")
    if not isinstance(root, dict):
        raise InvalidSubmissionError("root_task", "it must be an object that describes what to run")
    for key in root:
        if key not in _ROOT_KEYS | _IGNORED_KEYS:
            raise InvalidSubmissionError(f"root_task.{key:.40}", "unknown key")
    handler = _executor(root.get("handler"), "root_task.handler")
    dependencies = root.get("dependencies", [])
    if not isinstance(dependencies, list):
        raise InvalidSubmissionError("root_task.dependencies", "it must be a list of references")
    if not all(isinstance(item, REFERENCE_TYPES) for item in dependencies):
        raise InvalidSubmissionError("root_task.dependencies", "one of them is not a reference")
    private = root.get("task_private")
    if not isinstance(private, (dict, *REFERENCE_TYPES)):
        text = "it must be an object, or a reference to one in JSON"
        raise InvalidSubmissionError("root_task.task_private", text)
    expected = root.get("expected_outputs") or []
    if not isinstance(expected, list) or len(expected) > OUTPUTS_MAX:
        raise InvalidSubmissionError("root_task.expected_outputs", "it must be a list of ids")
    scheduling = _read_options(body.get("job_options"))
    return Root(handler, dependencies, read_ids(expected), private, scheduling)


def root_submission(root: Root, job: JobId, private: Any) -> Submission:
    """Create a job from its root task and the private data of the root task."""
    if not isinstance(private, dict):
        raise InvalidSubmissionError("root_task.task_private", "it must be an object in JSON")
    outputs = root.expected_outputs or (job_output_id(job),)
    arguments = dict(private)
    if root.handler == "init":
        if not isinstance(arguments.get("start_handler"), str):
            text = "it must have 'start_handler', the name of an executor"
            raise InvalidSubmissionError("root_task.task_private", text)
        if arguments.get("package_ref") is None:
            arguments.pop("package_ref", None)
    inputs = all_references([arguments, root.dependencies])
    if isinstance(root.private, REFERENCE_TYPES):  # the arguments contain it now
        inputs = [ref for ref in inputs if ref.id != root.private.id]
    _check_names(len(inputs) + len(outputs), "root_task")
    task = TaskSpec(
        root_task_id(job), job, job, -1, "", root.handler, tuple([ref.id for ref in inputs]),
        outputs, DEFAULT_NEEDS, False, _mentions(root.handler), "",
        codec.encode(to_json(arguments)),
    )  # fmt: skip
    _require_room(job, task.id, *outputs)
    known = tuple([ref for ref in inputs if not isinstance(ref, Future)])
    spec = JobSpec(job, "", False, True, False, root.scheduling)
    return Submission(spec, (AddTask(task, known),), outputs, {})


def _require_room(job: JobId, *made: str) -> None:
    """Reject the id of a job if an id that is derived from it would be too long."""
    longest = max(made, key=len)
    if len(longest) > ID_MAX_LENGTH:
        most = len(job) + ID_MAX_LENGTH - len(longest)
        name = longest.replace(job, "ID")
        raise InvalidIdError(
            job, f"it has {len(job)} characters, but may have {most}: {name} must be an id, too"
        )


def read_content(content: bytes) -> Any:
    """Read private data, which is JSON with references."""
    return from_json(codec.decode(content))


def inline_private(root: Root) -> Any:
    """Return private data that the body contains; None if it is on a worker."""
    if isinstance(root.private, Value):
        return read_content(root.private.content)
    return root.private if isinstance(root.private, dict) else None


def _read_options(options: Any) -> Scheduling:
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise InvalidSubmissionError("job_options", "it must be an object")
    for key in options:
        if key not in _JOURNAL_OPTIONS | {"scheduler", "sched_opts"}:
            raise InvalidSubmissionError(f"job_options.{key:.40}", "unknown key")
    return _scheduling(options.get("scheduler"), options.get("sched_opts"), "job_options")


def _scheduling(policy: Any, options: Any, where: str) -> Scheduling:
    if not (policy is None or isinstance(policy, str)):
        raise InvalidSubmissionError(where, "the name of a policy must be a string")
    if not (options is None or isinstance(options, dict)):
        raise InvalidSubmissionError(where, "the options of a policy must be an object")
    return read_scheduling(policy, options) if policy else read_scheduling(options=options)


# --- the form of ciel -----------------------------------------------------------------------------

JOB_KEYS: Final = ("name", "keep", "copies", "tasks", "want", "scheduling")


def read_job(body: Mapping[str, Any], job: JobId) -> Submission:
    """Read a job in the form of ciel, with decoded references."""
    name, keep = body.get("name", ""), body.get("keep", False)
    if not isinstance(name, str) or len(name) > JOB_NAME_MAX_LENGTH:
        text = f"it must be a string of at most {JOB_NAME_MAX_LENGTH} characters"
        raise InvalidSubmissionError("name", text)
    if not isinstance(keep, bool):
        raise InvalidSubmissionError("keep", "it must be true or false")
    copies = body.get("copies", 1)
    if type(copies) is not int or not 1 <= copies <= COPIES_MAX:
        raise InvalidSubmissionError("copies", f"it must be 1 to {COPIES_MAX}")
    scheduling = body.get("scheduling") or {}
    if not isinstance(scheduling, dict) or not scheduling.keys() <= {"policy", "options"}:
        raise InvalidSubmissionError("scheduling", "it must be an object of policy and options")
    policy = _scheduling(scheduling.get("policy"), scheduling.get("options"), "scheduling")
    tasks = body.get("tasks")
    if not isinstance(tasks, list) or not 0 < len(tasks) <= TASKS_MAX:
        raise InvalidSubmissionError("tasks", f"it must be a list of 1 to {TASKS_MAX} tasks")
    outputs: dict[str, list[ObjectId]] = {}
    added = []
    names = 0
    for ordinal, task in enumerate(tasks):
        where = f"tasks[{ordinal}]"
        names += _output_count(task, where)
        _check_names(names, where)
        added.append(_read_task(task, job, ordinal, outputs))
        names += len(added[-1].spec.inputs)
        _check_names(names, where)
    wanted = _wanted(body.get("want"), added, outputs)
    spec = JobSpec(job, name, False, True, keep, policy)
    return Submission(spec, tuple(added), wanted, outputs, copies)


def _read_task(
    task: dict[str, Any], job: JobId, ordinal: int, outputs: dict[str, list[ObjectId]]
) -> AddTask:
    where = f"tasks[{ordinal}]"
    for key in task:
        if key not in _TASK_KEYS:
            known = ", ".join(sorted(_TASK_KEYS))
            raise InvalidSubmissionError(f"{where}.{key:.40}", f"unknown key; a task has {known}")
    executor = _executor(task.get("executor"), f"{where}.executor")
    name = task.get("name", "")
    if not isinstance(name, str) or len(name) > NAME_MAX_LENGTH:
        text = f"it must be a string of at most {NAME_MAX_LENGTH} characters"
        raise InvalidSubmissionError(f"{where}.name", text)
    if name in outputs:
        raise InvalidSubmissionError(f"{where}.name", "another task has this name")
    arguments = task.get("arguments")
    if not isinstance(arguments, dict):
        raise InvalidSubmissionError(f"{where}.arguments", "it must be an object")
    sees_errors = task.get("sees_errors", False)
    if not isinstance(sees_errors, bool):
        raise InvalidSubmissionError(f"{where}.sees_errors", "it must be true or false")
    filled = _with_outputs(arguments, outputs, f"{where}.arguments")
    try:
        made = make_task(
            job=job, parent=job, ordinal=ordinal, executor=executor, arguments=filled,
            n_outputs=task.get("outputs", 1), needs=_needs(task.get("needs"), f"{where}.needs"),
            mentions=_mentions(executor), name=name, sees_errors=sees_errors,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise InvalidSubmissionError(f"{where}.arguments", str(error)) from None
    if name:
        outputs[name] = list(made[0].outputs)
    return AddTask(*made)


def _output_count(task: Any, where: str) -> int:
    if not isinstance(task, dict):
        raise InvalidSubmissionError(where, "a task must be an object")
    count = task.get("outputs", 1)
    if type(count) is not int or not 0 < count <= OUTPUTS_MAX:
        raise InvalidSubmissionError(f"{where}.outputs", f"it must be 1 to {OUTPUTS_MAX}")
    return count


def _check_names(count: int, where: str) -> None:
    if count > NAMES_MAX:
        text = f"the tasks up to this one name more than {NAMES_MAX} objects: submit several jobs"
        raise InvalidSubmissionError(where, text)


def _with_outputs(value: Any, outputs: Mapping[str, list[ObjectId]], where: str) -> Any:
    """Replace each `__output__` object by a reference to an output of an earlier task.

    Its form is `{"__output__": TASK}` or `{"__output__": [TASK, NUMBER]}`.
    """
    if isinstance(value, list):
        return [_with_outputs(item, outputs, where) for item in value]
    if not isinstance(value, dict):
        return value
    if _OUTPUT not in value:
        return {key: _with_outputs(item, outputs, where) for key, item in value.items()}
    return Future(_output(value[_OUTPUT], outputs, f"{where}: {_OUTPUT}"))


def _output(named: Any, outputs: Mapping[str, list[ObjectId]], where: str) -> ObjectId:
    match named:
        case str(task):
            number = 0
        case [str(task), int(number)]:
            pass
        case _:
            raise InvalidSubmissionError(where, "it must be a task's name, or [name, number]")
    made = outputs.get(task)
    if made is None:
        raise InvalidSubmissionError(where, f"no earlier task is called {task!r:.40}")
    if not 0 <= number < len(made):
        raise InvalidSubmissionError(where, f"{task:.40} has {len(made)} outputs, numbered from 0")
    return made[number]


def _wanted(
    want: Any, added: list[AddTask], outputs: Mapping[str, list[ObjectId]]
) -> tuple[ObjectId, ...]:
    if want is None:  # all outputs that no task of the job reads
        read = {object_id for task, _ in added for object_id in task.inputs}
        made = [object_id for task, _ in added for object_id in task.outputs]
        return tuple([object_id for object_id in made if object_id not in read])
    if not isinstance(want, list) or not want:
        raise InvalidSubmissionError("want", "it must be a list of tasks' names")
    wanted = [_output(named, outputs, "want") for named in want]
    return tuple(dict.fromkeys(wanted))


def _needs(value: Any, where: str) -> Needs:
    if value is None:
        return DEFAULT_NEEDS
    known = Needs._field_defaults
    if not isinstance(value, dict):
        raise InvalidSubmissionError(where, "it must be an object")
    for key in value:
        if key not in known:
            raise InvalidSubmissionError(
                f"{where}.{key:.40}", f"unknown key; the keys are {', '.join(known)}"
            )
    try:
        return read_needs(value)
    except InvalidNeedError as error:
        raise InvalidSubmissionError(f"{where}.{error.name}", f"it {error.reason}") from None


def _executor(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= EXECUTOR_MAX_LENGTH:
        raise InvalidSubmissionError(where, "it must be the name of an executor")
    return value


def _mentions(executor: str) -> Mentions:
    return Mentions.NOTHING if executor in PLAIN_PROGRAMS else Mentions.ANYTHING
