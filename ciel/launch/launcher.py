"""The owner's side of the launcher, the process that starts programs.

Usage:

    with Launcher.start_process() as launcher:
        launcher.start(1, LaunchSpec(["sort", "-u"], stdin=File("in"), stdout=File("out")))
        while not any(isinstance(event, ProgramExited) for event in launcher.wait_events(10)): ...

A reactor watches `fileno()` instead. It calls `receive` when the descriptor is readable, `flush` at
the end of each tick, and `flush` again when it is writable, while `wants_write` is true. Only one
thread may use a launcher at a time.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ciel.launch.errors import DescendantsRemainError, LauncherDiedError, LauncherMissingError
from ciel.launch.limits import lower_open_files
from ciel.launch.messages import (
    Event,
    LaunchSpec,
    decode_events,
    encode_adopt,
    encode_kill,
    encode_start,
)

_RECEIVE_BYTES = 64 << 10
_SEND_BYTES = 256 << 10
_PASSED_MAX = 250  # the kernel's limit is 253 descriptors in one message
_DEATH_S = 0.05  # how long the process may outlive its socket
_RLIMIT_LOCKS = 10  # carries the tag (see launcher.c); the resource module does not name it
_PR_SET_CHILD_SUBREAPER = 36


class Launcher:
    """A running launcher.

    It and its programs end with `close`, or when this process ends in any way.
    """

    def __init__(self, pid: int, link: socket.socket, salt: int) -> None:
        """Take over a new launcher process; callers use `start_process`."""
        link.setblocking(False)
        self.pid = pid
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._poll_both = select.poll()
        self._poll_both.register(link, select.POLLIN | select.POLLOUT)
        self._link = link
        self._salt = salt
        self._pidfd: int | None = os.pidfd_open(pid)
        self._requests: deque[tuple[bytes, list[int]]] = deque()
        self._partial = b""
        self._nothing_left = False

    @classmethod
    def start_process(
        cls,
        environ: Mapping[str, str] | None = None,
        program: Path | None = None,
        read_only: Iterable[str] = (),
    ) -> Self:
        """Start a launcher.

        Its programs inherit `environ` (default: this process's), and cannot write to the
        directories `read_only` if the kernel permits such mounts; see `protects`. The launcher has
        its own session and blocks all signals, so Ctrl-C reaches only this process. Its programs do
        not inherit ignored signals, such as SIGPIPE, or the raised limit of open files (see
        `limits`). Raises LauncherMissingError.
        """
        program = program or Path(__file__).with_name("ciel-launcher")
        salt = 1 + int.from_bytes(os.urandom(8), "big") % (2**31 - 1)
        signals = signal.valid_signals()
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            # The socket may already be descriptor 3: dup2 to itself would leave it close-on-exec.
            number = 3 if theirs.fileno() != 3 else 4
            try:
                pid = os.posix_spawn(
                    program,
                    [program.name, str(number), str(salt), *read_only],
                    os.environ if environ is None else environ,
                    file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), number)],
                    setsid=True,
                    setsigmask=signals,
                    setsigdef=signals - {signal.SIGKILL, signal.SIGSTOP},
                )
            except FileNotFoundError as error:
                raise LauncherMissingError(program) from error
            lower_open_files(pid)
            undo.pop_all()
        return cls(pid, ours, salt)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 once closed."""
        return self._link.fileno()

    def protects(self, directories: Iterable[str]) -> bool:
        """Whether programs cannot write to any of these directories; call it after the start."""
        try:
            with open(f"/proc/{self.pid}/mountinfo", encoding="utf-8", errors="replace") as file:
                mounts = [line.split(" ") for line in file]
        except OSError:
            return False
        protected = {_unescaped(mount[4]) for mount in mounts if "ro" in mount[5].split(",")}
        return all(os.path.realpath(directory) in protected for directory in directories)

    @property
    def wants_write(self) -> bool:
        """Whether `flush` has something left to send."""
        return bool(self._requests)

    def start(self, launch_id: int, spec: LaunchSpec) -> None:
        """Queue a launch. Its events are ProgramStarted and then ProgramExited, or ProgramFailed.

        No running program may have the same id (0 to 2**64-1). Raises LaunchSpecError.
        """
        request = encode_start(launch_id, spec)
        descriptors: list[int] = []
        try:
            for number in spec.descriptors:
                descriptors.append(os.dup(number))
        except OSError:
            _close_all(descriptors)
            raise
        self._requests.append((request, descriptors))

    def adopt(self, launch_id: int, parent_id: int, pid: int) -> None:
        """Queue the adoption of a process as the program of this launch.

        Either its event is ProgramStarted, and the process gets SIGUSR1 to start its work, or it is
        ProgramFailed with ESRCH. The process must lead a session, and must be an orphan that the
        running program `parent_id` has forked.
        """
        self._requests.append((encode_adopt(launch_id, parent_id, pid), []))

    def kill(self, launch_id: int, signal_number: int = signal.SIGKILL) -> None:
        """Queue a signal for the program's process group; nothing happens if it has ended.

        SIGKILL also kills all processes that the program started, in any group or session.
        """
        self._requests.append((encode_kill(launch_id, signal_number), []))

    def recall(self, launch_id: int) -> None:
        """Queue the cancellation of a launch; if it still waits, it fails with ECANCELED."""
        self._requests.append((encode_kill(launch_id, 0), []))

    def flush(self) -> bool:
        """Send queued requests without blocking; return whether all were sent."""
        while self._requests:
            batch, descriptors = self._next_batch()
            try:
                if descriptors:
                    sent_bytes = socket.send_fds(self._link, [batch], descriptors)
                else:
                    sent_bytes = self._link.send(batch)
            except BlockingIOError:
                self._requests.appendleft((batch, descriptors))
                return False
            except OSError as error:
                _close_all(descriptors)
                raise self._died(str(error)) from error
            _close_all(descriptors)
            if sent_bytes < len(batch):
                self._requests.appendleft((batch[sent_bytes:], []))
        return True

    def receive(self) -> list[Event]:
        """Return new events without waiting; [] if there are none. Raises LauncherDiedError."""
        try:
            data = self._link.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise self._died(str(error)) from error
        if not data:
            raise self._died("it closed the connection")
        events, self._partial = decode_events(self._partial + data)
        return events

    def wait_events(self, timeout_s: float) -> list[Event]:
        """Send queued requests, then wait for events; return [] after the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            poll = self._poll if self.flush() else self._poll_both
            remaining_s = max(0.0, deadline_s - time.monotonic())
            if poll.poll(remaining_s * 1000) and (events := self.receive()):
                return events
            if not remaining_s:
                return []

    def keep_going(self) -> bool:
        """Continue the launcher if a program has stopped it; return whether it was stopped."""
        if self._pidfd is None:
            return False
        try:
            was_stopped = os.waitid(os.P_PIDFD, self._pidfd, os.WSTOPPED | os.WNOHANG) is not None
            if was_stopped:
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        except (ChildProcessError, ProcessLookupError):  # it has ended, which `receive` reports
            return False
        return was_stopped

    def close(self, timeout_s: float = 5.0) -> None:
        """End the launcher and all its programs, and reap it; drop unsent requests.

        Raises DescendantsRemainError if this takes longer than twice `timeout_s`.
        """
        self._drop_link()
        if self._pidfd is not None and _wait_end([self._pidfd], time.monotonic() + timeout_s):
            self._reap()
        if not self._nothing_left:
            self.kill_descendants(timeout_s)

    def let_go(self) -> None:
        """Close this copy in a forked child.

        The launcher belongs to the parent, and must notice when the parent ends.
        """
        self._drop_link()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._pidfd, self._nothing_left = None, True

    def kill_descendants(self, timeout_s: float = 5.0) -> int:
        """Kill the launcher and all processes that its programs have started; return their number.

        This is for a launcher that was killed and could not clean up. Its programs die with it, but
        their children become children of this process (see `become_subreaper`) or of init, and are
        found by their tag. This reaps only tagged children. Raises DescendantsRemainError.
        """
        self._drop_link()
        deadline_s = time.monotonic() + timeout_s
        if self._pidfd is not None:
            _kill(self._pidfd)
            if not _wait_end([self._pidfd], deadline_s):
                raise DescendantsRemainError([self.pid], timeout_s)
            self._reap()
        killed: set[int] = set()
        # Repeat, since each round orphans children of the processes that it kills.
        while tagged := _kill_tagged(self._salt):
            killed |= tagged.keys()
            try:
                if not _wait_end(list(tagged.values()), deadline_s):
                    raise DescendantsRemainError(sorted(tagged), timeout_s)
            finally:
                _close_all(tagged.values())
            for pid in tagged:
                _reap_if_ours(pid)
        self._nothing_left = True
        return len(killed)

    def _next_batch(self) -> tuple[bytes, list[int]]:
        """Dequeue requests for one message. Its descriptors are sent with its first byte."""
        batch: list[bytes] = []
        descriptors: list[int] = []
        size_bytes = 0
        while self._requests and size_bytes < _SEND_BYTES:
            request, needed = self._requests[0]
            if len(descriptors) + len(needed) > _PASSED_MAX:
                break
            self._requests.popleft()
            batch.append(request)
            descriptors += needed
            size_bytes += len(request)
        return b"".join(batch), descriptors

    def _died(self, reason: str) -> LauncherDiedError:
        """Return an error with the launcher's exit status or signal, if it has ended by now."""
        if self._pidfd is not None and _wait_end([self._pidfd], time.monotonic() + _DEATH_S):
            status = self._reap()
            if status is not None:
                code = os.waitstatus_to_exitcode(status)
                reason = f"signal {-code}" if code < 0 else f"exit status {code}"
        return LauncherDiedError(self.pid, reason)

    def _reap(self) -> int | None:
        """Reap the dead launcher; None if other code has reaped it, or SIGCHLD is ignored."""
        assert self._pidfd is not None
        os.close(self._pidfd)
        self._pidfd = None
        try:
            status = os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return None
        self._nothing_left = status == 0  # it cleaned up
        return status

    def _drop_link(self) -> None:
        self._link.close()
        for _, descriptors in self._requests:
            _close_all(descriptors)
        self._requests.clear()


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children, for `kill_descendants` to reap."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _kill_tagged(salt: int) -> dict[int, int]:
    """Kill all processes with this tag, and reap dead ones; return a pidfd for each one killed."""
    killed: dict[int, int] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        except OSError:  # no free descriptor; the next round kills the rest
            if killed:
                break
            raise
        tagged = _has_tag(pid, salt)
        if tagged and not _wait_end([pidfd], 0):
            killed[pid] = pidfd
            # A nested launcher ends by itself, because its owner is dead. It first kills its own
            # programs, which have other tags and would survive if it were killed here.
            if not _is_launcher(pid):
                _kill(pidfd)
            continue
        os.close(pidfd)
        if tagged:
            _reap_if_ours(pid)
    return killed


def _is_launcher(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes() == b"ciel-launcher\n"
    except OSError:
        return False


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has died already
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _reap_if_ours(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # a child of init
        os.waitpid(pid, os.WNOHANG)


def _has_tag(pid: int, salt: int) -> bool:
    try:
        return resource.prlimit(pid, _RLIMIT_LOCKS)[0] >> 32 == salt
    except PermissionError:  # another user's; in some containers only /proc shows its limits
        with contextlib.suppress(OSError, ValueError, StopIteration):
            with open(f"/proc/{pid}/limits", encoding="ascii") as table:
                line = next(line for line in table if line.startswith("Max file locks "))
            return int(line.split()[3]) >> 32 == salt
        return False
    except ProcessLookupError:
        return False


def _wait_end(pidfds: list[int], deadline_s: float) -> bool:
    """Wait until all these processes are dead; False after the deadline."""
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    remaining = len(pidfds)
    while remaining:
        dead = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if not dead:
            return False
        for pidfd, _ in dead:
            poll.unregister(pidfd)
        remaining -= len(dead)
    return True


def _close_all(descriptors: Iterable[int]) -> None:
    for number in descriptors:
        os.close(number)


def _unescaped(path: str) -> str:
    """Undo the escapes of a path in the kernel's list of mounts."""
    for escaped, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(escaped, character)
    return path
