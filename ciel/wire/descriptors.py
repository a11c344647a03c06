"""Encodes and decodes tasks and jobs in records, and the arguments of executors in payloads.

A task is one record. Its outputs are encoded as a number if they have default names. The payload is
JSON that only the creator and the executor of the task read: `{"args": …}` and other keys of the
executor, with references as `__ref__` objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import intern
from typing import Any

from ciel.core.errors import InvalidSchedulingError
from ciel.core.ids import (
    ID_MAX_LENGTH,
    JobId,
    ObjectId,
    check_id,
    child_id,
    content_ordinal,
    output_ids,
)
from ciel.core.jobs import (
    AFTER_MAX,
    JOB_NAME_MAX_LENGTH,
    CallerContext,
    JobSpec,
    JobState,
    JobSummary,
    Predecessor,
)
from ciel.core.naming import memo_output_ids, name_arguments
from ciel.core.refs import Future, Reference
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling, read_scheduling
from ciel.core.tasks import DEFAULT_NEEDS, LIMITS, TEXT_CHECKS, Mentions, Needs, TaskSpec
from ciel.wire import codec
from ciel.wire.errors import DecodeError
from ciel.wire.references import from_json, to_json

_MENTIONS = tuple(Mentions)
_SEES_ERRORS = 4
_ANY_COUNT_SHIFT = 3
_COUNT_BITS = 20  # of the number of alternatives, since there are at most INPUTS_MAX
_APART_COUNT_SHIFT = _ANY_COUNT_SHIFT + _COUNT_BITS
_NAME_MAX_LENGTH = 300
_DIGEST_MAX_LENGTH = 64
_EXECUTOR_MAX_LENGTH = 64
_JOB_STATES = frozenset(str(state) for state in JobState)
INPUTS_MAX = 1_000_000
OUTPUTS_MAX = 10_000  # if encoded as a number: generating so many names takes 3 ms


def make_task(
    *,
    job: JobId,
    parent: str,
    ordinal: int | None,
    executor: str,
    arguments: dict[str, Any],
    n_outputs: int = 1,
    outputs: tuple[ObjectId, ...] | None = None,
    memoise: bool = False,
    needs: Needs = DEFAULT_NEEDS,
    sees_errors: bool = False,
    mentions: Mentions = Mentions.ANYTHING,
    name: str = "",
    any_of: Iterable[Reference] = (),
    apart: Iterable[Reference] = (),
    twin: int = 0,
) -> tuple[TaskSpec, tuple[Reference, ...]]:
    """Make the `ordinal`-th task of `parent`; references inside `arguments` become its inputs.

    `outputs`: the parent's outputs that the task takes over. Otherwise, names of outputs derive
    from executor, arguments and job if `memoise`, else from the task's name. `any_of`: inputs of
    which one must be available. `apart`: inputs of which the task may read only parts. Without an
    ordinal the task's name derives from its executor, its
    arguments and the outputs that it takes over; `twin` is the number of equal tasks that the
    parent created before. Returns the task and the references of inputs that are not futures.
    """
    alternatives = dict.fromkeys([ref.id for ref in any_of])
    takes = outputs if ordinal is None and outputs is not None else ()
    digest, references, text = name_arguments(executor, arguments, tuple(alternatives), takes)
    if ordinal is None:
        ordinal = content_ordinal(digest, twin)
    inputs = tuple([ref.id for ref in references])
    if alternatives:
        if not alternatives.keys() <= set(inputs):
            raise ValueError("an alternative of a task is not among its arguments")
        inputs = (*[i for i in inputs if i not in alternatives], *alternatives)
    in_parts = {ref.id for ref in apart}
    if in_parts:
        in_parts -= alternatives.keys()
        inputs = (*[i for i in inputs if i in in_parts], *[i for i in inputs if i not in in_parts])
    task_id = child_id(parent, ordinal, digest)
    if outputs is None:
        if memoise:
            outputs = memo_output_ids(executor, digest, job, n_outputs)
        else:
            outputs = output_ids(task_id, n_outputs)
    # A task that mentions only its own objects is sent its inputs in any case, so the payload needs
    # no second copy.
    by_id = mentions is Mentions.OWN
    payload = codec.encode(to_json(arguments, values_by_id=by_id)) if references else text
    spec = TaskSpec(
        task_id, job, parent, ordinal, digest, executor, inputs, outputs, needs, sees_errors,
        mentions, name, payload, len(alternatives), len(in_parts.intersection(inputs)),
    )  # fmt: skip
    return spec, tuple([ref for ref in references if not isinstance(ref, Future)])


def read_arguments(payload: bytes) -> dict[str, Any]:
    """Decode a task's payload; return the `arguments` of `make_task`."""
    arguments = codec.decode(payload)
    if b"__ref__" in payload:
        arguments = from_json(arguments)
    if not isinstance(arguments, dict):
        raise DecodeError("the arguments of a task must be an object")
    return arguments


def task_fields(spec: TaskSpec) -> list[Any]:
    """Return the fields of a task in a record; the payload follows the record."""
    outputs: int | tuple[str, ...] = spec.outputs
    if outputs == output_ids(spec.id, len(spec.outputs)):
        outputs = len(spec.outputs)
    flags = spec.mentions.value | (_SEES_ERRORS if spec.sees_errors else 0)
    flags |= spec.any_count << _ANY_COUNT_SHIFT | spec.apart_count << _APART_COUNT_SHIFT
    needs = 0 if spec.needs is DEFAULT_NEEDS else _needs_fields(spec.needs)
    parent = 0 if spec.parent == spec.job else spec.parent
    return [
        spec.id, spec.job, parent, spec.ordinal, spec.digest, spec.executor, spec.inputs,
        outputs, needs, flags, spec.name,
    ]  # fmt: skip


def _needs_fields(needs: Needs) -> int | list[Any]:
    if needs == DEFAULT_NEEDS:
        return 0
    if needs[_NUMBERS:] == DEFAULT_NEEDS[_NUMBERS:]:
        return list(needs[:_NUMBERS])
    return list(needs)


TASK_FIELD_COUNT = 11


def read_task(fields: list[Any], payload: bytes) -> TaskSpec:
    """Read a task from the fields of a record; raises DecodeError or InvalidIdError."""
    task_id, job, parent, ordinal, digest, executor, inputs, outputs, needs, flags, name = fields
    check_id(task_id)
    job = _read_shared_id(job)
    parent = job if parent == 0 else _read_shared_id(parent)
    if type(ordinal) is not int or not -1 <= ordinal < 2**63:
        raise DecodeError("a task's ordinal must be a whole number")
    if type(digest) is not str or len(digest) > _DIGEST_MAX_LENGTH:
        raise DecodeError(
            f"a task's digest must be a string of at most {_DIGEST_MAX_LENGTH} letters"
        )
    if type(executor) is not str or not 0 < len(executor) <= _EXECUTOR_MAX_LENGTH:
        raise DecodeError(
            f"a task's executor must be a string of 1 to {_EXECUTOR_MAX_LENGTH} letters"
        )
    if type(flags) is not int or flags < 0:
        raise DecodeError("a task's flags must be a whole number")
    if type(name) is not str or len(name) > _NAME_MAX_LENGTH:
        raise DecodeError(
            f"a task's name must be a string of at most {_NAME_MAX_LENGTH} characters"
        )
    if type(outputs) is int:
        if not 0 <= outputs <= OUTPUTS_MAX:
            raise DecodeError(f"a task must have 1 to {OUTPUTS_MAX} outputs")
        made = output_ids(task_id, outputs)
        if made and len(made[-1]) > ID_MAX_LENGTH:
            raise DecodeError("a task's id is too long for its outputs to be named after it")
    else:
        made = read_ids(outputs)
    if not made:
        raise DecodeError("a task must have at least one output")
    read = read_ids(inputs) if inputs != [] else ()
    apart_count = flags >> _APART_COUNT_SHIFT
    any_count = (flags >> _ANY_COUNT_SHIFT) - (apart_count << _COUNT_BITS)
    if any_count + apart_count > len(read):
        raise DecodeError("a task has more alternatives than inputs")
    return TaskSpec(
        task_id, job, parent, ordinal, digest, intern(executor),
        read, made, _read_needs(needs), flags & _SEES_ERRORS != 0, _MENTIONS[flags & 3], name,
        payload, any_count, apart_count,
    )  # fmt: skip


def read_ids(value: Any) -> tuple[ObjectId, ...]:
    """Read a list of ids, each once; raises DecodeError or InvalidIdError."""
    if not isinstance(value, list) or len(value) > INPUTS_MAX:
        raise DecodeError("a list of ids was expected")
    for item in value:
        check_id(item)
    if len(value) == 1:
        return (value[0],)
    ids = tuple(dict.fromkeys(value))
    if len(ids) != len(value):
        raise DecodeError("a list contains an id twice")
    return ids


_ids_seen: dict[str, str] = {}


def _read_shared_id(value: Any) -> Any:
    """Read an id that many tasks contain; it is checked once, and all share one string."""
    known = _ids_seen.get(value) if type(value) is str else None
    if known is None:
        if len(_ids_seen) > 1000:
            _ids_seen.clear()  # it only saves time and memory
        known = _ids_seen[value] = check_id(value)
    return known


_needs_seen: dict[tuple[Any, ...], Needs] = {}
_NUMBERS = Needs._fields.index("retry_on")  # the numbers come first, usually without other fields
_TEXTS = frozenset([i for i, limit in enumerate(LIMITS) if limit.kind in TEXT_CHECKS])
_RESOURCES = Needs._fields.index("resources")
_WHOLE = [limit.is_whole for limit in LIMITS]
_NEEDS_COUNTS = (_NUMBERS, *range(_NUMBERS + 2, len(Needs._fields) + 1))  # old senders omit some


def _read_needs(value: Any) -> Needs:
    if type(value) is int and value == 0:
        return DEFAULT_NEEDS
    if not isinstance(value, list) or len(value) not in _NEEDS_COUNTS:
        raise DecodeError("a task's needs must be five numbers, and optionally its retry options")
    numbers = value[:_NUMBERS]
    if not all(_is_limit(i, item) for i, item in enumerate(numbers)):
        raise DecodeError(
            "a task's slots, memory, priority and retries must be integers, its timeout a number"
        )
    key: tuple[Any, ...] = tuple(numbers)
    if len(value) > _NUMBERS:
        kinds, *further = value[_NUMBERS:]
        if not isinstance(kinds, list) or not all(type(kind) is str for kind in kinds):
            raise DecodeError("a task's retry_on must be a list of strings")
        if len(value) > _RESOURCES:
            place = _RESOURCES - _NUMBERS - 1
            further[place] = _read_resources(further[place])
        if not all(_is_limit(i, item) for i, item in enumerate(further, _NUMBERS + 1)):
            raise DecodeError(
                "a task's delays and grace period must be numbers, its io, where, isolate and "
                "image texts"
            )
        key = (*key, tuple(kinds), *further)
    known = _needs_seen.get(key)
    if known is None:
        if len(_needs_seen) > 1000:
            _needs_seen.clear()  # it only saves memory
        known = _needs_seen[key] = Needs(*key)
    return known


def _is_limit(index: int, value: Any) -> bool:
    if index in _TEXTS:
        return type(value) is str
    if index == _RESOURCES:
        return type(value) is tuple
    return type(value) is int or (type(value) is float and not _WHOLE[index])


def _read_resources(value: Any) -> Any:
    if not isinstance(value, list) or not all(
        isinstance(item, list) and [type(part) for part in item] == [str, int] for item in value
    ):
        raise DecodeError("a task's resources must be pairs of a name and an amount")
    return tuple([(name, amount) for name, amount in value])


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def job_fields(spec: JobSpec) -> list[Any]:
    """Return the fields of a job in a record."""
    how = spec.scheduling
    scheduling = 0 if how == DEFAULT_SCHEDULING else [how.policy, dict(how.options)]
    fields = [spec.id, spec.name, spec.open, spec.detached, spec.keep, scheduling]
    if spec.after or spec.max_fails != -1:
        after = [[*predecessor] for predecessor in spec.after]
        return [*fields, context_fields(spec.context), after, spec.max_fails]
    return fields if spec.context is None else [*fields, context_fields(spec.context)]


def read_job(fields: list[Any]) -> JobSpec:
    """Read a job from the fields of a record; raises DecodeError or InvalidIdError."""
    job_id, name, is_open, detached, keep, scheduling, *others = fields
    if len(others) < 3:
        others = [*(others or [0]), [], -1]
    context, after, max_fails = others
    check_id(job_id)
    if type(name) is not str or len(name) > JOB_NAME_MAX_LENGTH:
        raise DecodeError(
            f"a job's name must be a string of at most {JOB_NAME_MAX_LENGTH} characters"
        )
    if not all(type(flag) is bool for flag in (is_open, detached, keep)):
        raise DecodeError("a job's options must be true or false")
    if type(max_fails) is not int or max_fails < -1:
        raise DecodeError("the number of failures that a job may have must be a number from -1")
    return JobSpec(
        job_id, name, is_open, detached, keep, _read_scheduling(scheduling),
        read_context(context), _read_after(after), max_fails,
    )  # fmt: skip


def _read_after(value: Any) -> tuple[Predecessor, ...]:
    if not isinstance(value, list) or len(value) > AFTER_MAX:
        raise DecodeError(f"a job can follow a list of at most {AFTER_MAX} jobs")
    for item in value:
        if not isinstance(item, list) or len(item) != 2 or type(item[1]) is not bool:
            raise DecodeError("a job that another one follows must be an id, and true or false")
        check_id(item[0])
    return tuple([Predecessor(*item) for item in value])


def context_fields(context: CallerContext | None) -> int | list[Any]:
    """Return the field of a job's context in a record."""
    if context is None:
        return 0
    return [context.cwd, dict(context.env), context.replaces_env]


_contexts_seen: dict[tuple[Any, ...], CallerContext] = {}


def read_context(value: Any) -> CallerContext | None:
    """Read the context of a job; equal contexts, which jobs of a user often have, share a value."""
    if type(value) is int and value == 0:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise DecodeError("the context of a job must be a directory and an environment")
    cwd, env, replaces_env = value
    if type(cwd) is not str or "\0" in cwd or not (cwd == "" or cwd.startswith("/")):
        raise DecodeError("the working directory of a job must be an absolute path")
    if not isinstance(env, dict) or type(replaces_env) is not bool:
        raise DecodeError("the environment of a job must be an object of strings")
    if not all(_is_variable(name, text) for name, text in env.items()):
        raise DecodeError(
            "the environment of a job has a name or value that cannot be passed to a program"
        )
    key = (cwd, tuple(env.items()), replaces_env)
    known = _contexts_seen.get(key)
    if known is None:
        if len(_contexts_seen) > 1000:
            _contexts_seen.clear()  # it only saves memory
        known = _contexts_seen[key] = CallerContext(cwd, env, replaces_env)
    return known


def _is_variable(name: Any, value: Any) -> bool:
    if type(name) is not str or type(value) is not str:
        return False
    return name != "" and "=" not in name and "\0" not in name and "\0" not in value


def _read_scheduling(value: Any) -> Scheduling:
    if type(value) is int and value == 0:
        return DEFAULT_SCHEDULING
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], dict):
        raise DecodeError("a job's scheduling must be a policy and its options")
    try:
        return read_scheduling(*value)
    except InvalidSchedulingError as error:
        raise DecodeError(str(error)) from None


def read_summary(fields: Any) -> JobSummary:
    """Read the summary of a job; raises DecodeError or InvalidIdError."""
    if not isinstance(fields, list) or len(fields) != len(JobSummary._fields):
        raise DecodeError("the summary of a job has the wrong number of fields")
    job_id, number, name, state, reason, counts, created_at_s, ended_at_s, *others = fields
    check_id(job_id)
    times = (created_at_s, 0 if ended_at_s is None else ended_at_s)
    if (
        not all(type(text) is str for text in (name, reason, state))
        or state not in _JOB_STATES
        or not all(type(each) is int and each >= 0 for each in (number, *others))
        or not all(_is_number(time_s) for time_s in times)
        or type(counts) is not dict
        or not all(type(count) is int and count >= 0 for count in counts.values())
    ):
        raise DecodeError("the summary of a job has a field of the wrong kind")
    return JobSummary(*fields)
