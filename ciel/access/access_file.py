"""The access file: a master's address and key, readable only by its user.

A master writes the file. Clients and workers of the same user find it without any option; users
copy it to other hosts. Every user who can read the file can run commands as its owner. So, like
ssh, this module refuses a file that other users could read.
"""

import json
import os
import re
import secrets
import select
import shlex
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from ciel.access.addresses import parse_url
from ciel.access.errors import AccessFileError, AccessFileMissingError, MalformedKeyError
from ciel.access.keys import Key

VERSION: Final = 1
_SIZE_MAX_BYTES = 64 * 1024
_PID_MAX = 1 << 22  # the kernel's limit
_UNIX_NAME_MAX_LENGTH = 107  # the kernel's limit
_is_id = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII).fullmatch

T = TypeVar("T")


class AccessFile(NamedTuple):
    """The content of an access file.

    `pid` and `pid_start` (clock ticks since boot) identify the master's process. `control` is the
    address for frames: `HOST:PORT`, or `unix:PATH` for peers on the same host. `standbys`: the URLs
    of masters that may take over.
    """

    url: str
    control: str
    cluster_id: str
    key: Key
    pid: int
    pid_start: int
    standbys: tuple[str, ...] = ()

    def is_alive(self) -> bool:
        """Whether the master still runs; only meaningful on its own host."""
        return process_start(self.pid) == self.pid_start

    def write(self, path: Path) -> None:
        """Write the file atomically, with mode 0600, and create its directory with mode 0700.

        Raise `AccessFileError` if other users can write to the directory.
        """
        fields = {
            "version": VERSION,
            "url": self.url,
            "control": self.control,
            "cluster_id": self.cluster_id,
            "key": self.key.text(),
            "pid": self.pid,
            "pid_start": self.pid_start,
        }
        if self.standbys:
            fields["standbys"] = list(self.standbys)
        try:
            path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _require_private(path.parent, path.parent.stat(), stat.S_IWGRP | stat.S_IWOTH)
            _replace(path, json.dumps(fields, indent=1).encode() + b"\n")
        except OSError as error:
            reason = f"it cannot be written: {error.strerror or error}"
            raise AccessFileError(path, reason) from error

    def unlink_if_ours(self, path: Path) -> bool:
        """Remove the file unless another process has replaced it."""
        try:
            found = read(path)
        except AccessFileMissingError:
            return False
        if (found.pid, found.pid_start) != (self.pid, self.pid_start):
            return False
        path.unlink(missing_ok=True)
        return True


def read(path: Path) -> AccessFile:
    """Read and check an access file; follow a symbolic link and check its target.

    Raise `AccessFileMissingError` if the file does not exist. Raise `AccessFileError` if it is not
    a regular file, belongs to another user, is accessible to other users, or lacks a field.
    """
    try:
        # O_NONBLOCK, since opening a planted FIFO would otherwise block forever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        raise AccessFileMissingError(path) from None
    except OSError as error:
        raise AccessFileError(path, error.strerror or str(error)) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise AccessFileError(path, "not a regular file")
        _require_private(path, status, stat.S_IRWXG | stat.S_IRWXO)
        return _parse(path, os.read(fd, _SIZE_MAX_BYTES))
    finally:
        os.close(fd)


def key_for_start(path: Path, *, new_key: bool = False) -> tuple[str, Key]:
    """Return the cluster id and key for a starting master: from `path`, or new ones if missing.

    `new_key` replaces the key and keeps the cluster id. If the file exists but cannot be trusted,
    raise `AccessFileError`: a key is never replaced silently.
    """
    try:
        found = read(path)
    except AccessFileMissingError:
        return secrets.token_hex(8), Key.new()
    return found.cluster_id, Key.new() if new_key else found.key


def process_start(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot; None if it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = line.rpartition(b")")[2].split()  # the command in parentheses may contain anything
    return None if fields[0] in b"ZX" else int(fields[19])


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Wait until process `pid` has ended, at most `timeout_s`; return whether it has."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(pidfd)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _require_private(path: Path, status: os.stat_result, forbidden: int) -> None:
    """Refuse another user's file, and a file with one of the `forbidden` mode bits."""
    if status.st_uid != os.geteuid():
        raise AccessFileError(
            path,
            f"it belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}; "
            "run the command as the owner, or make a copy that you own",
        )
    if status.st_mode & forbidden:
        raise AccessFileError(
            path,
            f"other users can access it (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"type: chmod go= {shlex.quote(str(path))}",
        )


def _parse(path: Path, text: bytes) -> AccessFile:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged(path, "not JSON" if text else "empty") from None  # the cause quotes the key
    if not isinstance(fields, dict):
        raise _damaged(path, "not a JSON object")
    version = _field(path, fields, "version", int)
    if version > VERSION:
        raise AccessFileError(
            path,
            f"a newer ciel wrote it (format {version}; this ciel reads formats up to {VERSION}); "
            "upgrade ciel here",
        )
    try:
        key = Key.from_text(_field(path, fields, "key", str))
    except MalformedKeyError as error:
        raise _damaged(path, f'"key" is {error}') from None
    found = AccessFile(
        url=_field(path, fields, "url", str),
        control=_field(path, fields, "control", str),
        cluster_id=_field(path, fields, "cluster_id", str),
        key=key,
        pid=_field(path, fields, "pid", int),
        pid_start=_field(path, fields, "pid_start", int),
        standbys=tuple(fields.get("standbys", ())),
    )
    if not all(isinstance(url, str) and _is_address(url) for url in found.standbys):
        raise _damaged(path, '"standbys" is not a list of http://HOST:PORT')
    if not _is_address(found.url):
        raise _damaged(path, '"url" is not http://HOST:PORT')
    if not (_is_unix_socket(found.control) or _is_address(found.control)):
        raise _damaged(path, '"control" is neither HOST:PORT nor unix:NAME')
    if not _is_id(found.cluster_id):
        raise _damaged(path, '"cluster_id" is not a name')
    if not (0 < found.pid <= _PID_MAX and found.pid_start >= 0):
        raise _damaged(path, '"pid" and "pid_start" do not identify a process')
    return found


def _field(path: Path, fields: dict[str, Any], name: str, kind: type[T]) -> T:
    value = fields.get(name)
    if type(value) is not kind:
        what = "text" if kind is str else "whole number"
        raise _damaged(path, f'"{name}" is missing, or is not a {what}')
    return value


def _is_address(text: str) -> bool:
    try:
        return bool(parse_url(text))
    except ValueError:
        return False


def _is_unix_socket(text: str) -> bool:
    name = text.removeprefix("unix:")
    return name != text and name.isprintable() and 1 < len(name) <= _UNIX_NAME_MAX_LENGTH


def _damaged(path: Path, what: str) -> AccessFileError:
    return AccessFileError(path, f"{what}; remove it, or copy it again from its master's host")
