"""Transports exceptions of calls to the callers that wait for them.

An exception of a function reaches the caller with its own class, its notes, and the remote
traceback as its cause. All other failures are a `TaskError`, with one class for each way in which a
task can end.
"""

from __future__ import annotations

import pickle
import traceback
from base64 import b64decode, b64encode
from concurrent.futures import CancelledError
from typing import Final

from ciel.core.errors import CielError
from ciel.core.refs import Failure
from ciel.python.packing import PROTOCOL, UnpackedError, pack, unpack

RAISED: Final = "RAISED"
"""The reason of a failure whose details contain the exception itself: {"text", "error"}."""
ERROR_MAX_BYTES: Final = 64 << 10
TEXT_MAX_CHARACTERS: Final = 32 << 10


class TaskError(CielError):
    """A task has no result, although its function raised no exception.

    `reason`: the engine's code for the failure (see `core`). The text names the task and the
    worker, and quotes the output.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class TaskKilledError(TaskError):
    """The program of the task ended while the task ran: by `os._exit`, a signal or a crash."""


class TaskMemoryError(TaskError, MemoryError):
    """The worker killed the task because it exceeded its memory limit."""


class TaskTimeoutError(TaskError, TimeoutError):
    """The worker killed the task because it ran longer than its `timeout_s`."""


class TaskCancelledError(TaskError, CancelledError):
    """A client or another task cancelled the task or its job."""


class TaskLostError(TaskError):
    """The task's result or an input is lost and cannot be recomputed, or its workers have died."""


class PackingError(TaskError, TypeError, pickle.PicklingError):
    """A function, an argument or a result cannot be pickled; the text names it."""


class RemoteError(TaskError):
    """Replaces an exception of a task that the caller cannot raise.

    Either it cannot be pickled or unpickled, or it would end or interrupt the caller's program:
    SystemExit, KeyboardInterrupt and GeneratorExit. `kind`: the name of the exception's class.
    """

    def __init__(self, text: str, reason: str = RAISED, kind: str = "") -> None:
        super().__init__(text, reason)
        self.kind = kind


class RemoteTraceback(Exception):
    """The cause of an exception that a task has raised: the traceback in the task, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


for _public in (
    TaskError, TaskKilledError, TaskMemoryError, TaskTimeoutError, TaskCancelledError,
    TaskLostError, PackingError, RemoteError, RemoteTraceback,
):  # fmt: skip
    _public.__module__ = "ciel"  # the module from which users import them

_ENDING: Final = (SystemExit, KeyboardInterrupt, GeneratorExit)
_KINDS: Final[dict[str, type[TaskError]]] = {
    "MEMORY_LIMIT": TaskMemoryError,
    "TIMED_OUT": TaskTimeoutError,
    "CANCELLED": TaskCancelledError,
    "OBJECT_LOST": TaskLostError,
    "MISSING_INPUT": TaskLostError,
    "WORKER_FAILED": TaskLostError,
    "NEVER_MADE": TaskLostError,
    "NO_OUTPUT": TaskLostError,
    "RUNTIME_ERROR": TaskKilledError,
    "RUNTIME_EXCEPTION": TaskKilledError,
}


def pack_error(
    error: BaseException, skipped_frames: int = 0, locals_wanted: bool = False, worker: str = "",
    name: str = "",
) -> bytes:  # fmt: skip
    """Pack an exception with its traceback. Never raises.

    `skipped_frames`: how many outermost frames to leave out: they are ciel's. `worker`, `name`: the
    worker and the call that raised the exception.
    """
    trace = error.__traceback__
    for _ in range(skipped_frames):
        trace = trace.tb_next if trace is not None else None
    report = traceback.TracebackException(type(error), error, trace)
    if locals_wanted:
        from ciel.python.showing import add_locals

        add_locals(report, error)
    text = _cut("".join(report.format()))
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    head = _pack_alone(error.with_traceback(None))
    error.with_traceback(trace)
    notes = list(getattr(error, "__notes__", ()))
    return pickle.dumps((head, text, kind, notes, worker, name), PROTOCOL)


def _pack_alone(error: BaseException) -> bytes | None:
    """Pack an exception so that unpickling restores its class and its `args`.

    Return None if that is not possible, or if the result is too large.
    """
    try:
        packed = pack(error)
        if packed.size_bytes > ERROR_MAX_BYTES:
            return None
        if not packed.buffers and unpack(packed.head).args == error.args:
            return packed.head
    except Exception:  # a class of the user may raise anything
        pass
    try:
        from ciel.python.rebuilding import pack_rebuilt

        head = pack_rebuilt(error)
        unpack(head)
    except Exception:  # as above
        return None
    return head if len(head) <= ERROR_MAX_BYTES else None


def unpack_error(packed: bytes, where: str = "") -> BaseException:
    """Return an exception for the caller to raise.

    `where` (task, worker, attempt) becomes a note. If the task failed because a call that it
    depends on raised the exception, a note before that names this call. An exception that would end
    or interrupt the caller's program becomes a RemoteError.
    """
    head, text, kind, notes, worker, name = pickle.loads(packed)
    error: BaseException | None = None
    if head is not None:
        try:
            error = unpack(head)
        except Exception as reason:  # a class of the user may raise anything
            notes = [*notes, f"it could not be unpickled here: {type(reason).__name__}: {reason}"]
    if isinstance(error, _ENDING):
        error = RemoteError(_ending_text(error), kind=kind)
        object.__setattr__(error, "__cause__", RemoteTraceback(text))
    elif not isinstance(error, BaseException):
        error = RemoteError(f"a task raised {kind}, which cannot be pickled:\n{text}", kind=kind)
    shown = list(getattr(error, "__notes__", ()))
    shown += [note for note in notes if note not in shown]
    if name and not where.startswith(f"in task {name} ("):
        found = [f"in task {name} on worker {worker}" if worker else f"in task {name}"]
        found += [f"its result was needed {where}"] if where else []
        shown += [note for note in found if note not in shown]
    elif where:
        is_whole = not worker or " on worker " in where
        shown.append(where if is_whole else f"{where} on worker {worker}")
    if shown:
        _set_notes(error, shown)
    if not isinstance(error, RemoteError):
        object.__setattr__(error, "__cause__", RemoteTraceback(text))
    return error


def error_of_map(packed: bytes, index: int) -> BaseException:
    """Return the exception of call `index` of a map, from 0, with a note that names the call."""
    error = unpack_error(packed)
    note = f"in element {index} of the map, counted from 0"
    _set_notes(error, [*getattr(error, "__notes__", ()), note])
    return error


def _set_notes(error: BaseException, notes: list[str]) -> None:
    object.__setattr__(error, "__notes__", notes)  # frozen classes refuse `add_note`


def _ending_text(error: BaseException) -> str:
    """Describe an exception of a task that would have ended an ordinary program."""
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        status = ", ".join(map(repr, error.args))  # other picklers may lose the attribute `code`
        return (
            f"the task called sys.exit({status}) (it raised {kind}), and so has no result; "
            "to end a task early, return from its function"
        )
    text = f": {error}" if str(error) else ""
    return f"the task raised {kind}{text}, and so has no result"


def error_text(packed: bytes) -> str:
    """Return the remote traceback as text."""
    return str(pickle.loads(packed)[1])


def failure_details(packed: bytes) -> dict[str, str]:
    """Return the details of a failure for an exception of a function."""
    return {"text": error_text(packed), "error": b64encode(packed).decode()}


def error_of(failure: Failure) -> BaseException:
    """Return the exception for an object whose task has failed."""
    details = failure.details
    if isinstance(details, dict):
        text = str(details.get("text", ""))
        packed = details.get("error")
        if isinstance(packed, str):
            try:
                return unpack_error(b64decode(packed), str(details.get("where", "")))
            except (ValueError, TypeError, EOFError, pickle.UnpicklingError):
                pass  # its text is all that can be read
    else:
        text = str(details or "")
    kind: type[TaskError] = _KINDS.get(failure.reason, TaskError)
    if failure.reason == "DEPENDENCY_FAILED":
        kind = next((k for word, k in _KINDS.items() if f"({word})" in text), TaskError)
    return kind(text.rstrip() or f"{failure.id}: {failure.reason}", failure.reason)


def packing_error(what: str, error: UnpackedError | Exception) -> PackingError:
    """Return the error for the function, argument or result `what`, which cannot be sent."""
    return PackingError(f"{what}: {error}", "UNPACKED")


def _cut(text: str) -> str:
    if len(text) <= TEXT_MAX_CHARACTERS:
        return text
    half = TEXT_MAX_CHARACTERS // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"
