"""The wire format of the launcher: encodes requests, decodes events. `launcher.c` is the peer.

Numbers are in native byte order without padding, because both ends are built for one machine. A
request starts with its size in bytes; an event has a fixed size. This module is pure.
"""

import os
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ciel.launch.errors import LaunchSpecError

REQUEST_BYTES_MAX = 8 << 20  # more than the kernel accepts
REQUEST_STRINGS_MAX = 1 << 20
_START = struct.Struct("=IHHQII4BI4Q")
_KILL = struct.Struct("=IHHQ")
_ADOPT = struct.Struct("=IHHQQQ")
_EVENT = struct.Struct("=HHiQQQQQ")
_UNLIMITED = 2**64 - 1
_NO_NEW_PRIVILEGES = 1
_START_KIND, _KILL_KIND, _ADOPT_KIND = 1, 2, 3
_STARTED, _FAILED, _EXITED = 1, 2, 3
_TRUNCATED, _APPENDED, _DESCRIPTOR, _INHERITED, _AS_STDOUT = range(5)


class Stage(IntEnum):
    """The step at which a launch failed, in the order of the steps."""

    VFORK = 1
    CHDIR = 2
    STDIN = 3
    STDOUT = 4
    STDERR = 5
    SETRLIMIT = 6
    EXEC = 7


@dataclass(frozen=True, slots=True)
class File:
    """A file as a program's stream. The launcher opens it relative to the program's directory.

    A file for standard output or error is created if missing and, unless `append`, truncated.
    Opening never waits: for an output FIFO without a reader it fails with ENXIO; pass a
    `Descriptor` in this case.
    """

    path: str | bytes | os.PathLike[str]
    append: bool = False


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An open descriptor as a program's stream; it may be closed once `start` has returned."""

    number: int


class Standard(IntEnum):
    """Streams for which no file is opened."""

    INHERITED = _INHERITED  # the launcher's stream, which it inherits from its owner
    STDOUT = _AS_STDOUT  # for standard error only: the same as standard output


Stream = File | Descriptor | Standard
DEV_NULL = File("/dev/null")


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a program, soft and hard; None keeps the launcher's.

    `processes` counts all processes of the user on this host, and does not apply to root.
    """

    address_space_bytes: int | None = None
    open_files: int | None = None
    processes: int | None = None
    core_bytes: int | None = 0

    @property
    def numbers(self) -> list[int]:
        """The limits in their encoded form."""
        limits = (self.address_space_bytes, self.open_files, self.processes, self.core_bytes)
        return [_UNLIMITED if limit is None else limit for limit in limits]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Describes a launch. `env` overrides the launcher's environment; None unsets a variable.

    If the first argument has no slash, it is searched in the program's PATH. `at_most`: the launch
    waits until fewer than that many programs run, after earlier launches that wait; 0: it does not
    wait. A launch that may wait cannot have descriptors. `no_new_privileges`: setuid programs run
    with the privileges of their caller.
    """

    argv: Sequence[str | bytes]
    cwd: str | bytes | os.PathLike[str] = ""
    env: Mapping[str, str | bytes | None] = field(default_factory=dict)
    stdin: Stream = DEV_NULL
    stdout: Stream = Standard.INHERITED
    stderr: Stream = Standard.INHERITED
    limits: Limits = Limits()
    at_most: int = 0
    no_new_privileges: bool = False

    @property
    def descriptors(self) -> list[int]:
        """The descriptors to send with the request, in this order."""
        streams = (self.stdin, self.stdout, self.stderr)
        return [stream.number for stream in streams if isinstance(stream, Descriptor)]


class ProgramStarted(NamedTuple):
    """The program is running: its exec succeeded, or it was adopted."""

    launch_id: int
    pid: int


class ProgramFailed(NamedTuple):
    """The program was never executed; this is the last event of its launch."""

    launch_id: int
    errno: int
    stage: Stage

    @property
    def reason(self) -> str:
        return f"{self.stage.name.lower()}: {os.strerror(self.errno)}"


class ProgramExited(NamedTuple):
    """The program and all processes that it started have ended; the last event of its launch.

    `wall_s` is the time since its start. `user_s` and `system_s` are CPU times that include the
    children for which it waited. `max_rss_bytes` is the size of its largest process. It is never
    below the launcher's (about 2 MB), whose memory the program shares between vfork and exec.
    """

    launch_id: int
    status: int  # as `wait` returns it
    wall_s: float
    user_s: float
    system_s: float
    max_rss_bytes: int

    @property
    def exit_status(self) -> int | None:
        """The exit status from 0 to 255; None if a signal ended the program."""
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None

    @property
    def signal_name(self) -> str | None:
        """The name of the signal that ended the program; None if it exited."""
        if not os.WIFSIGNALED(self.status):
            return None
        number = os.WTERMSIG(self.status)
        try:
            return signal.Signals(number).name
        except ValueError:  # a real-time signal between the first and the last has no name
            return f"SIG{number}"


Event = ProgramStarted | ProgramFailed | ProgramExited


def encode_start(launch_id: int, spec: LaunchSpec) -> bytes:
    """Encode a START request; raises LaunchSpecError with the invalid part of the spec.

    If the arguments are too long for the kernel, but not here, ProgramFailed has E2BIG.
    """
    if not spec.argv or not spec.argv[0]:
        raise LaunchSpecError("argv", "names no program")
    if spec.at_most and spec.descriptors:
        raise LaunchSpecError("at_most", "cannot be used for a launch with descriptors")
    if spec.stdin is Standard.STDOUT or spec.stdout is Standard.STDOUT:
        raise LaunchSpecError("Standard.STDOUT", "is for stderr only")
    (in_kind, in_path), (out_kind, out_path), (error_kind, error_path) = (
        _stream(spec.stdin),
        _stream(spec.stdout),
        _stream(spec.stderr),
    )
    strings = [os.fsencode(spec.cwd), in_path, out_path, error_path]
    try:  # all at once, since most are text: encoding each one takes three times as long
        texts = [*spec.argv, *[_assignment(name, value) for name, value in spec.env.items()]]
        strings.append(os.fsencode("\0".join(texts)))  # type: ignore[arg-type]  # bytes are refused
    except TypeError:
        strings += [*map(os.fsencode, spec.argv)]
        strings += [os.fsencode(_assignment(name, value)) for name, value in spec.env.items()]
    count = 4 + len(spec.argv) + len(spec.env)
    body = b"\0".join(strings) + b"\0"
    if body.count(0) != count:
        given = [*strings[:4], *map(os.fsencode, spec.argv)]
        given += [os.fsencode(_assignment(name, value)) for name, value in spec.env.items()]
        culprit = next(string for string in given if 0 in string)
        raise LaunchSpecError(
            repr(culprit[:80]), "contains a zero byte, which a program cannot receive"
        )
    size_bytes = _START.size + len(body)
    if size_bytes > REQUEST_BYTES_MAX or len(spec.argv) + 2 * len(spec.env) >= REQUEST_STRINGS_MAX:
        raise LaunchSpecError(
            "the launch",
            f"takes {count} strings, {size_bytes} bytes; the limits are {REQUEST_STRINGS_MAX} and "
            f"{REQUEST_BYTES_MAX}: pass long arguments in a file",
        )
    head = _START.pack(
        size_bytes,
        _START_KIND,
        0,
        launch_id,
        len(spec.argv),
        len(spec.env),
        in_kind,
        out_kind,
        error_kind,
        _NO_NEW_PRIVILEGES if spec.no_new_privileges else 0,
        spec.at_most,
        *spec.limits.numbers,
    )
    return head + body


def encode_kill(launch_id: int, signal_number: int) -> bytes:
    """Encode a KILL request."""
    return _KILL.pack(_KILL.size, _KILL_KIND, signal_number, launch_id)


def encode_adopt(launch_id: int, parent_id: int, pid: int) -> bytes:
    """Encode an ADOPT request."""
    return _ADOPT.pack(_ADOPT.size, _ADOPT_KIND, 0, launch_id, parent_id, pid)


def decode_events(data: bytes) -> tuple[list[Event], bytes]:
    """Return the events in `data`, and the received part of the next one."""
    whole_bytes = len(data) - len(data) % _EVENT.size
    events: list[Event] = []
    for kind, stage, value, launch_id, wall_us, user_us, system_us, max_rss in _EVENT.iter_unpack(
        data[:whole_bytes]
    ):
        if kind == _EXITED:
            times_s = (wall_us / 1e6, user_us / 1e6, system_us / 1e6)
            events.append(ProgramExited(launch_id, value, *times_s, max_rss))
        elif kind == _STARTED:
            events.append(ProgramStarted(launch_id, value))
        else:
            events.append(ProgramFailed(launch_id, value, Stage(stage)))
    return events, data[whole_bytes:]


def _assignment(name: str, value: str | bytes | None) -> str | bytes:
    if not name or "=" in name:
        raise LaunchSpecError(f"environment name {name!r}", "is empty or has a '='")
    if value is None:
        return name
    return f"{name}={value}" if isinstance(value, str) else os.fsencode(name) + b"=" + value


def _stream(stream: Stream) -> tuple[int, bytes]:
    if isinstance(stream, File):
        return _APPENDED if stream.append else _TRUNCATED, os.fsencode(stream.path)
    return _DESCRIPTOR if isinstance(stream, Descriptor) else stream.value, b""
