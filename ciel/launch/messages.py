"""The launcher's wire: a launch as bytes, bytes as events. `launcher.c` is the other end; pure.

Native byte order, no padding: both ends are one build on one machine. A request starts with its
size in bytes; an event has a fixed size.
"""

import os
import signal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from ciel.launch.errors import LaunchSpecError

REQUEST_BYTES_MAX = 8 << 20  # the kernel takes less, hence what is refused here never worked
REQUEST_STRINGS_MAX = 1 << 20
_START = struct.Struct("=IHHQII3BxI4Q")
_KILL = struct.Struct("=IHHQ")
_ADOPT = struct.Struct("=IHHQQQ")
_EVENT = struct.Struct("=HHiQQQQQ")
_UNLIMITED = 2**64 - 1
_START_KIND, _KILL_KIND, _ADOPT_KIND = 1, 2, 3
_STARTED, _FAILED, _EXITED = 1, 2, 3
_TRUNCATED, _APPENDED, _DESCRIPTOR, _INHERITED, _AS_STDOUT = range(5)


class Stage(IntEnum):
    """How far a launch came that failed; the order is that of the steps."""

    VFORK = 1
    CHDIR = 2
    STDIN = 3
    STDOUT = 4
    STDERR = 5
    SETRLIMIT = 6
    EXEC = 7


@dataclass(frozen=True, slots=True)
class File:
    """A file as a program's stream, opened by the launcher relative to the program's directory.

    Standard input is read; the others are created and, unless `append`, truncated. Opening never
    waits: an output FIFO without a reader fails with ENXIO (pass a `Descriptor` there).
    """

    path: str | bytes | os.PathLike[str]
    append: bool = False


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An open descriptor of ours as a program's stream; once `start` has returned, it may close."""

    number: int


class Standard(IntEnum):
    """Streams that need nothing opened."""

    INHERITED = _INHERITED  # the launcher's own, which are its owner's
    STDOUT = _AS_STDOUT  # standard error only: wherever standard output goes


Stream = File | Descriptor | Standard
DEV_NULL = File("/dev/null")


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a program, soft and hard; None leaves that of the launcher.

    `processes` counts all processes of the user, on this host, and does not bind root.
    """

    address_space_bytes: int | None = None
    open_files: int | None = None
    processes: int | None = None
    core_bytes: int | None = 0

    @property
    def numbers(self) -> list[int]:
        """As on the wire."""
        limits = (self.address_space_bytes, self.open_files, self.processes, self.core_bytes)
        return [_UNLIMITED if limit is None else limit for limit in limits]


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to start and how. `env` is laid over the launcher's environment; None unsets a name.

    A first argument without a slash is sought in the program's own PATH. `at_most`: it waits, in
    the order of such launches, until fewer programs than that run; 0: it does not wait. One that
    may wait cannot be given descriptors.
    """

    argv: Sequence[str | bytes]
    cwd: str | bytes | os.PathLike[str] = ""
    env: Mapping[str, str | bytes | None] = field(default_factory=dict)
    stdin: Stream = DEV_NULL
    stdout: Stream = Standard.INHERITED
    stderr: Stream = Standard.INHERITED
    limits: Limits = Limits()
    at_most: int = 0

    @property
    def descriptors(self) -> list[int]:
        """What is to travel with the request, in this order."""
        streams = (self.stdin, self.stdout, self.stderr)
        return [stream.number for stream in streams if isinstance(stream, Descriptor)]


class ProgramStarted(NamedTuple):
    """The program runs: its exec succeeded, or it was adopted."""

    launch_id: int
    pid: int


class ProgramFailed(NamedTuple):
    """The program never ran; the last event of its launch."""

    launch_id: int
    errno: int
    stage: Stage

    @property
    def reason(self) -> str:
        return f"{self.stage.name.lower()}: {os.strerror(self.errno)}"


class ProgramExited(NamedTuple):
    """The program ended, and nothing that it started is alive; the last event of its launch.

    `wall_s` is the time from its start, the others are of CPU and include those of its children
    that it waited for. `max_rss_bytes` is that of its largest
    process, and never below the launcher's own (about 2 MB): vfork shares that memory for a moment.
    """

    launch_id: int
    status: int  # as from wait
    wall_s: float
    user_s: float
    system_s: float
    max_rss_bytes: int

    @property
    def exit_status(self) -> int | None:
        """0 to 255; None if a signal ended it."""
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None

    @property
    def signal_name(self) -> str | None:
        """Such as SIGKILL; None if it exited by itself."""
        if not os.WIFSIGNALED(self.status):
            return None
        number = os.WTERMSIG(self.status)
        try:
            return signal.Signals(number).name
        except ValueError:  # a real-time signal between the first and the last has no name
            return f"SIG{number}"


Event = ProgramStarted | ProgramFailed | ProgramExited


def encode_start(launch_id: int, spec: LaunchSpec) -> bytes:
    """Return the request; raises LaunchSpecError, naming the culprit.

    What fits here, but not into the kernel, comes back as ProgramFailed with E2BIG.
    """
    if not spec.argv or not spec.argv[0]:
        raise LaunchSpecError("argv", "names no program")
    if spec.at_most and spec.descriptors:
        raise LaunchSpecError("at_most", "is not for a launch with descriptors")
    if spec.stdin is Standard.STDOUT or spec.stdout is Standard.STDOUT:
        raise LaunchSpecError("Standard.STDOUT", "is for stderr only")
    (in_kind, in_path), (out_kind, out_path), (error_kind, error_path) = (
        _stream(spec.stdin),
        _stream(spec.stdout),
        _stream(spec.stderr),
    )
    strings = [os.fsencode(spec.cwd), in_path, out_path, error_path]
    try:  # all at once, as most are text: encoding each by itself takes three times as long
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
            repr(culprit[:80]), "holds a zero byte, which no program can be given"
        )
    size_bytes = _START.size + len(body)
    if size_bytes > REQUEST_BYTES_MAX or len(spec.argv) + 2 * len(spec.env) >= REQUEST_STRINGS_MAX:
        raise LaunchSpecError("the launch", f"takes {count} strings, {size_bytes} bytes")
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
        spec.at_most,
        *spec.limits.numbers,
    )
    return head + body


def encode_kill(launch_id: int, signal_number: int) -> bytes:
    """Return the request."""
    return _KILL.pack(_KILL.size, _KILL_KIND, signal_number, launch_id)


def encode_adopt(launch_id: int, parent_id: int, pid: int) -> bytes:
    """Return the request."""
    return _ADOPT.pack(_ADOPT.size, _ADOPT_KIND, 0, launch_id, parent_id, pid)


def decode_events(data: bytes) -> tuple[list[Event], bytes]:
    """Return the events in `data`, and what has come of the next one."""
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
