"""The root of all errors of ciel.

Every error has its data as attributes, and builds its message from them.
"""

from __future__ import annotations


class CielError(Exception):
    """The base class of every error that ciel raises on purpose."""


class InvalidIdError(CielError):
    """An id does not match the grammar. Raised before anything is looked up or created."""

    def __init__(self, text: object, reason: str) -> None:
        self.text = text
        self.reason = reason
        super().__init__(f"{str(text)[:80]!r} is not an id: {reason}")


class InvalidContentError(CielError, ValueError):
    """The inline content of a reference is not valid base64."""

    def __init__(self, object_id: str) -> None:
        self.object_id = object_id
        super().__init__(f"the content in the reference of object {object_id} is not base64")


class InvalidTaskError(CielError):
    """A task contradicts itself or the graph, which is left unchanged."""

    def __init__(self, task_id: str, reason: str) -> None:
        self.task_id = task_id
        self.reason = reason
        super().__init__(f"task {task_id}: {reason}")


class InvalidNeedError(CielError, ValueError):
    """The value of a need has a wrong type; `reason` says which one it must have."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.name = name
        self.reason = reason


class WhereError(CielError, ValueError):
    """An expression over labels is wrong at a place, counted from 0."""

    def __init__(self, text: str, place: int, reason: str) -> None:
        start = max(0, place - 30)
        before, after = text[start:place], text[place : place + 30]
        super().__init__(f"{reason}, at character {place + 1}: {before!s}⟨here⟩{after!s}")
        self.text = text
        self.place = place


class NoAttemptError(CielError):
    """A program speaks for an attempt that has ended, or of a task that does not exist."""

    def __init__(self, task_id: str, attempt: int) -> None:
        super().__init__(f"attempt {attempt} of task {task_id} does not run")


class TooManyTasksError(CielError):
    """A job has as many tasks as the master permits."""

    def __init__(self, job_id: str, tasks_max: int) -> None:
        super().__init__(
            f"job {job_id} has {tasks_max:,} tasks, and no job may have more (--tasks-max of the "
            "master): does a task spawn tasks for ever?"
        )


class InvalidTransitionError(CielError):
    """A state transition that the table does not list: a bug in ciel."""

    def __init__(self, subject: str, state: object, step: object) -> None:
        self.subject = subject
        self.state = state
        self.step = step
        super().__init__(f"{subject} is {state} and cannot become {step}: this is a bug in ciel")


class UnknownJobError(CielError):
    """A job id is unknown to the master; the job may have been removed."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id}; it may have been removed")


class InvalidSchedulingError(CielError):
    """A job's policy or one of its options is unknown, or a value is out of range."""


class InvariantError(CielError):
    """A self-check found a broken invariant; `code` names it."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(f"invariant {code}: {detail}")


class JobNotEndedError(CielError):
    """A job cannot be removed before it has ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"job {number} has not ended; cancel it first")


class CannotRetryError(CielError):
    """The failed tasks of an ended job cannot be retried."""

    def __init__(self, number: int, reason: str) -> None:
        self.number = number
        self.reason = reason
        super().__init__(f"job {number} cannot be retried: {reason}")


class CannotRetryTaskError(CielError):
    """A task cannot be retried. `task` names it, as in `task 17`."""

    def __init__(self, task: str, reason: str) -> None:
        self.task = task
        self.reason = reason
        super().__init__(f"{task} cannot be retried: {reason}")


class CannotCancelTaskError(CielError):
    """A task cannot be cancelled, since it has ended. `task` names it, as in `task 17`."""

    def __init__(self, task: str, state: str) -> None:
        self.task = task
        self.state = state
        super().__init__(f"{task} cannot be cancelled: it is {state}")
