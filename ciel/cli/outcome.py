"""Runs a command, and reports its errors as an exit status and one message without a traceback.

The first Ctrl-C cancels the command's job and waits until its programs have ended; a second one
ends the command at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Final

from ciel.access.errors import AccessError, SettingsError
from ciel.cli.output.streams import discard, replace_closed
from ciel.client.errors import (
    AccessRefusedError,
    ClientClosedError,
    ClientError,
    ClusterError,
    ClusterOptionError,
    ConnectionLostError,
    JobEndedError,
    NoMasterError,
    PackageError,
    QueryError,
    TaskFailedError,
    UploadError,
    WaitTimeoutError,
)
from ciel.core.errors import CielError
from ciel.core.jobs import JobState
from ciel.execution.report import visible_text
from ciel.wire.errors import WireError

if TYPE_CHECKING:
    from ciel.client.client import Client
    from ciel.client.jobs import Job


class Status(IntEnum):
    """Exit statuses."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_MASTER = 3
    CANCELLED = 4
    TIMED_OUT = 5
    BUG = 70
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


OF_JOB_STATE: Final = {
    str(JobState.COMPLETED): Status.DONE,
    str(JobState.FAILED): Status.FAILED,
    str(JobState.CANCELLING): Status.CANCELLED,
    str(JobState.CANCELLED): Status.CANCELLED,
}

# The first matching row applies.
_OF_ERROR: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Status], ...] = (
    ((SettingsError, PackageError, QueryError, WireError, ClusterOptionError), Status.USAGE),
    ((NoMasterError, AccessRefusedError, AccessError), Status.NO_MASTER),
    ((ClusterError, ConnectionLostError), Status.NO_MASTER),
    ((UploadError, CielError, OSError), Status.FAILED),
)
_CANCEL_TIMEOUT_S = 30.0
"""How long a command waits until a job that it has cancelled has ended.

The programs of the job have a grace period."""


class UsageError(CielError):
    """The command line, or a file that it names, is invalid or requests something impossible."""


class OutputClosedError(Exception):
    """The reader of this process's standard output has closed it."""


class Terminated(BaseException):
    """A signal requests that this process ends."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def conclude(command: Callable[[], int]) -> int:
    """Run a command to its end; print its error, if any, and return the exit status."""
    replace_closed()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, _terminate)
    try:
        try:
            status = command()
        except SystemExit as error:  # argparse has printed the reason, or the help
            status = error.code if isinstance(error.code, int) else Status.USAGE
        _flush_stdout()
        return status
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
        say("interrupted")
        return Status.INTERRUPTED
    except Terminated as error:
        return 128 + error.signal_number
    except (OutputClosedError, BrokenPipeError):
        discard(sys.stdout)
        return Status.OUTPUT_CLOSED
    except Exception as error:
        if os.environ.get("CIEL_DEBUG"):
            import traceback

            traceback.print_exc()
        say(text_of(error))
        return status_of(error)
    finally:
        for number, disposition in before.items():
            signal.signal(number, disposition)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # Python must not flush the stream again at exit
                discard(stream)


def _flush_stdout() -> None:
    """Flush standard output; raises OSError that names it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(error) from None


def _unwritable(error: OSError) -> OSError:
    """Return an error with the name of the stream that could not be written to."""
    error.filename = error.filename or "standard output"
    return error


def status_of(error: Exception) -> int:
    """Return the exit status for an error; `Status.BUG` for an error of no known kind."""
    if isinstance(error, UsageError):
        return Status.USAGE
    if isinstance(error, WaitTimeoutError):
        return Status.TIMED_OUT
    if isinstance(error, TaskFailedError):
        return Status.CANCELLED if error.was_cancelled else Status.FAILED
    if isinstance(error, JobEndedError):
        return OF_JOB_STATE.get(error.state, Status.FAILED)
    for kinds, status in _OF_ERROR:
        if isinstance(error, kinds):
            return status
    return Status.BUG


def text_of(error: Exception) -> str:
    """Return the message of an error; for a bug, one line with how to report it."""
    if status_of(error) != Status.BUG:
        if isinstance(error, OSError) and not isinstance(error, CielError) and error.strerror:
            from ciel.launch.limits import open_files_advice

            place = f"{error.filename}: " if error.filename else ""
            return f"{place}{error.strerror}{open_files_advice(error)}"
        return str(error)
    import traceback  # slow to load, and for bugs only

    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return (
        f"a bug in ciel: {type(error).__name__}: {error}{place}; "
        "please report it with the traceback that CIEL_DEBUG=1 shows"
    )


def say(text: str) -> None:
    """Print a message to the user on standard error."""
    with suppress(OSError):  # standard error is closed
        print(f"ciel: {visible_text(text)}", file=sys.stderr, flush=True)


@contextmanager
def cancelling(client: Client, job: Job) -> Iterator[None]:
    """Cancel the job if the context is interrupted or fails.

    Then wait until the job's programs have ended.

    Ctrl-C ends that wait. The remaining programs then end with the cluster, if it belongs to this
    command; otherwise the master ends them.
    """
    try:
        yield
    except BaseException as error:
        if job.has_ended:
            raise
        if isinstance(error, KeyboardInterrupt):
            say(f"cancelling job {job.label}; Ctrl-C again ends the command at once")
        try:
            interrupted = isinstance(error, KeyboardInterrupt | Terminated)
            job.cancel("interrupted" if interrupted else "its client failed")
            job.wait(_CANCEL_TIMEOUT_S)
        except (KeyboardInterrupt, Terminated, WaitTimeoutError):
            pass
        except (ClientClosedError, ClientError):
            pass  # the first error is more informative
        raise


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)
