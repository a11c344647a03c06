"""The root of our errors. Every error carries its data and builds its message from it."""

from __future__ import annotations


class CielError(Exception):
    """Root of every error that ciel raises on purpose."""


class InvalidIdError(CielError):
    """An id that does not match the grammar; nothing was looked up or created under it."""

    def __init__(self, text: object, reason: str) -> None:
        self.text = text
        self.reason = reason
        super().__init__(f"{str(text)[:80]!r} is not an id: {reason}")


class InvalidContentError(CielError, ValueError):
    """A reference that says what its object holds, but not in base64."""

    def __init__(self, object_id: str) -> None:
        self.object_id = object_id
        super().__init__(f"what the reference says that object {object_id} holds is not base64")


class InvalidTaskError(CielError):
    """A task that contradicts itself or the graph; the graph is as it was before."""

    def __init__(self, task_id: str, reason: str) -> None:
        self.task_id = task_id
        self.reason = reason
        super().__init__(f"task {task_id}: {reason}")


class InvalidTransitionError(CielError):
    """A step that the state table does not list: a bug of ours, with the state it met."""

    def __init__(self, subject: str, state: object, step: object) -> None:
        self.subject = subject
        self.state = state
        self.step = step
        super().__init__(f"{subject} is {state}: cannot become {step}")


class UnknownJobError(CielError):
    """A job id that this master does not know (or no longer knows)."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job {job_id}")


class InvalidSchedulingError(CielError):
    """A job's policy, or an option of it, is not known or out of its limits."""


class InvariantError(CielError):
    """A self-check found a broken invariant; `code` names it."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(f"invariant {code}: {detail}")


class JobNotEndedError(CielError):
    """A job cannot be removed while it goes on."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"job {number} has not ended; cancel it first")


class CannotRetryError(CielError):
    """An ended job cannot go on with what failed."""

    def __init__(self, number: int, reason: str) -> None:
        self.number = number
        self.reason = reason
        super().__init__(f"job {number} cannot be tried again: {reason}")


class CannotRetryTaskError(CielError):
    """A task cannot be tried again. `task` names it, as in `task 17`."""

    def __init__(self, task: str, reason: str) -> None:
        self.task = task
        self.reason = reason
        super().__init__(f"{task} cannot be tried again: {reason}")


class CannotCancelTaskError(CielError):
    """A task cannot be cancelled, since it is over. `task` names it, as in `task 17`."""

    def __init__(self, task: str, state: str) -> None:
        self.task = task
        self.state = state
        super().__init__(f"{task} cannot be cancelled: it is {state}")
