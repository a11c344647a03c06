"""What went wrong in a call, on its way to whoever waits for it.

What the function raised arrives as it is: of its own class, with its notes, and with the remote
traceback as its cause. Everything else is a `TaskError`, one class for each way in which a task can
end.
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
"""The reason of a failure that has the exception itself in its details: {"text", "error"}."""
ERROR_MAX_BYTES: Final = 64 << 10
TEXT_MAX_CHARACTERS: Final = 32 << 10


class TaskError(CielError):
    """A task did not make its result, and no function of it raised anything. `reason` is the
    engine's word for it (`core`), the text tells the story: which task, where, with what output.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class TaskKilledError(TaskError):
    """Its program has ended in the middle: `os._exit`, a signal, a crash."""


class TaskMemoryError(TaskError, MemoryError):
    """It used more memory than it may, and was killed."""


class TaskTimeoutError(TaskError, TimeoutError):
    """It ran longer than its `timeout_s`, and was killed."""


class TaskCancelledError(TaskError, CancelledError):
    """It was called off, or its job was."""


class TaskLostError(TaskError):
    """Its result, or what it needs, is lost and cannot be made again; or workers died of it."""


class PackingError(TaskError, TypeError, pickle.PicklingError):
    """A function, an argument or a result has no bytes; the text names it."""


class RemoteError(TaskError):
    """Stands for an exception that could not be pickled, or not be unpickled here, and for those
    that would end or interrupt the program that waits: SystemExit, KeyboardInterrupt and
    GeneratorExit. `kind` is its class in words.
    """

    def __init__(self, text: str, reason: str = RAISED, kind: str = "") -> None:
        super().__init__(text, reason)
        self.kind = kind


class RemoteTraceback(Exception):
    """The cause of an exception that was raised in a task: its traceback there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


for _public in (
    TaskError, TaskKilledError, TaskMemoryError, TaskTimeoutError, TaskCancelledError,
    TaskLostError, PackingError, RemoteError, RemoteTraceback,
):  # fmt: skip
    _public.__module__ = "ciel"  # where users know them from

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
    """Pack an exception with its traceback, less the outermost frames, which are ours, the worker
    on which it was raised and the name of the call that raised it. Never raises.
    """
    trace = error.__traceback__
    for _ in range(skipped_frames):
        trace = trace.tb_next if trace is not None else None
    told = traceback.TracebackException(type(error), error, trace)
    if locals_wanted:
        from ciel.python.showing import add_locals

        add_locals(told, error)
    text = _cut("".join(told.format()))
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    head = _pack_alone(error.with_traceback(None))
    error.with_traceback(trace)
    notes = list(getattr(error, "__notes__", ()))
    return pickle.dumps((head, text, kind, notes, worker, name), PROTOCOL)


def _pack_alone(error: BaseException) -> bytes | None:
    """Pack an exception so that it can be read again, of its own class and with its own `args`;
    None if that cannot be, or is too large.
    """
    try:
        packed = pack(error)
        if packed.size_bytes > ERROR_MAX_BYTES:
            return None
        if not packed.buffers and unpack(packed.head).args == error.args:
            return packed.head
    except Exception:  # of anybody's class
        pass
    try:
        from ciel.python.rebuilding import pack_rebuilt

        head = pack_rebuilt(error)
        unpack(head)
    except Exception:  # as above
        return None
    return head if len(head) <= ERROR_MAX_BYTES else None


def unpack_error(packed: bytes, where: str = "") -> BaseException:
    """Return the exception, to be raised: `where` (task, worker, attempt) becomes a note of it. If
    another call raised it, on whose result that task depends, a note before that names the culprit.

    What would end or interrupt the program in which it is raised becomes a RemoteError.
    """
    head, text, kind, notes, worker, name = pickle.loads(packed)
    error: BaseException | None = None
    if head is not None:
        try:
            error = unpack(head)
        except Exception as reason:  # of anybody's class
            notes = [*notes, f"it could not be unpickled here: {type(reason).__name__}: {reason}"]
    if isinstance(error, _ENDING):
        error = RemoteError(_ending_text(error), kind=kind)
        object.__setattr__(error, "__cause__", RemoteTraceback(text))
    elif not isinstance(error, BaseException):
        error = RemoteError(f"a task raised {kind}, which cannot be pickled:\n{text}", kind=kind)
    told = list(getattr(error, "__notes__", ()))
    told += [note for note in notes if note not in told]
    if name and not where.startswith(f"in task {name} ("):
        found = [f"in task {name} on worker {worker}" if worker else f"in task {name}"]
        found += [f"its result was needed {where}"] if where else []
        told += [note for note in found if note not in told]
    elif where:
        is_whole = not worker or " on worker " in where
        told.append(where if is_whole else f"{where} on worker {worker}")
    if told:
        _set_notes(error, told)
    if not isinstance(error, RemoteError):
        object.__setattr__(error, "__cause__", RemoteTraceback(text))
    return error


def error_of_map(packed: bytes, index: int) -> BaseException:
    """Return what a call of a map raised, to be raised, with a note that says which call it was:
    `index` counts from 0.
    """
    error = unpack_error(packed)
    note = f"in element {index} of the map, counted from 0"
    _set_notes(error, [*getattr(error, "__notes__", ()), note])
    return error


def _set_notes(error: BaseException, notes: list[str]) -> None:
    object.__setattr__(error, "__notes__", notes)  # frozen classes refuse `add_note`


def _ending_text(error: BaseException) -> str:
    """Say what a task did that would have ended a program of its own."""
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        status = ", ".join(map(repr, error.args))  # `code` is lost where others pickle exceptions
        return (
            f"the task called sys.exit({status}) (it raised {kind}), and so has no result; "
            "to end a task early, return from its function"
        )
    text = f": {error}" if str(error) else ""
    return f"the task raised {kind}{text}, and so has no result"


def error_text(packed: bytes) -> str:
    """Return the remote traceback as text, for people and logs."""
    return str(pickle.loads(packed)[1])


def failure_details(packed: bytes) -> dict[str, str]:
    """Return what the details of a failure are when a function raised."""
    return {"text": error_text(packed), "error": b64encode(packed).decode()}


def error_of(failure: Failure) -> BaseException:
    """Return what is to be raised for an object that could not be made."""
    details = failure.details
    if isinstance(details, dict):
        text = str(details.get("text", ""))
        packed = details.get("error")
        if isinstance(packed, str):
            try:
                return unpack_error(b64decode(packed), str(details.get("where", "")))
            except (ValueError, TypeError, EOFError, pickle.UnpicklingError):
                pass  # then its text must do
    else:
        text = str(details or "")
    kind: type[TaskError] = _KINDS.get(failure.reason, TaskError)
    if failure.reason == "DEPENDENCY_FAILED":
        kind = next((k for word, k in _KINDS.items() if f"({word})" in text), TaskError)
    return kind(text.rstrip() or f"{failure.id}: {failure.reason}", failure.reason)


def packing_error(what: str, error: UnpackedError | Exception) -> PackingError:
    """Say which function, argument or result cannot be sent; `what` is its name."""
    return PackingError(f"{what}: {error}", "UNPACKED")


def _cut(text: str) -> str:
    if len(text) <= TEXT_MAX_CHARACTERS:
        return text
    half = TEXT_MAX_CHARACTERS // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"
