"""`ciel up` and `ciel down`: a local cluster in the background.

`up` starts a process in a session of its own that holds the cluster (`--supervise`, below). Its
process id stands in the access file, and `down` ends it by that; however it ends, so does the
cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ciel.access import access_file
from ciel.access.access_file import AccessFile, key_for_start, process_start
from ciel.access.addresses import TAKEN, is_loopback, netloc, parse_url
from ciel.access.errors import AccessError, AccessFileMissingError
from ciel.access.places import (
    access_path,
    current_path,
    drop_current,
    point_current,
    up_lock_path,
)
from ciel.access.pruning import prune_ended
from ciel.access.settings import MasterLocation
from ciel.cli.daemons.channels import add_channel_options, channel_switches
from ciel.cli.daemons.timeouts import add_kill_grace, add_worker_limits
from ciel.cli.jobs.unfinished import may_end
from ciel.cli.outcome import Status, Terminated, UsageError, conclude, say, status_of, text_of
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import WORKERS_MAX, crashed, make_parser
from ciel.cli.parsing.parser import whole_number
from ciel.client.client import Client
from ciel.client.errors import (
    ClientClosedError,
    ClientError,
    ClusterError,
    ClusterOptionError,
    NoMasterError,
    WaitTimeoutError,
)
from ciel.core.errors import CielError
from ciel.core.tasks import SLOTS_MAX
from ciel.wire.descriptors import read_summary

if TYPE_CHECKING:
    from ciel.client.cluster import LocalCluster

_DEFAULT_LISTEN = "127.0.0.1:8000"
_PORTS = range(20000, 32768)  # Java clients read ports as signed 16-bit numbers
_READY_TIMEOUT_S = 20.0
_DOWN_TIMEOUT_S = 15.0
_JOBS_END_TIMEOUT_S = 30.0
_LINE_MAX_BYTES = 64 << 10


def main(prog: str, words: Sequence[str]) -> int:
    """Do `up` or `down`."""
    return _up(words) if prog == "up" else _down(words)


# --- up -------------------------------------------------------------------------------------------


def _up(words: Sequence[str]) -> int:
    parser = make_parser("ciel up", "Start a local cluster in the background; `ciel down` ends it.")
    parser.add_argument(
        "--workers", type=whole_number(1, WORKERS_MAX), default=1, metavar="N", help="default 1"
    )
    parser.add_argument(
        "--slots", type=whole_number(1, SLOTS_MAX), metavar="N",
        help="of each worker (default: the cores, shared out)",
    )  # fmt: skip
    parser.add_argument(
        "--store",
        metavar="SPEC",
        help="disk, shm or scc, options after a colon (default: CIEL_STORE, or disk)",
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=_DEFAULT_LISTEN,
        help="default %(default)s; port 0: any free one",
    )  # fmt: skip
    add_worker_limits(parser)
    add_kill_grace(parser)
    add_channel_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(words)
    with _only_one():
        if (up := _current()) is not None and up.is_alive():
            say(f"already up at {up.url}; `ciel down` ends it")
            _print(up.url, "up", args.json, in_words=True)
            return Status.DONE
        if gone := crashed():
            say(f"the last cluster, at {gone.url}, had crashed (process {gone.pid} is gone)")
        ready = _start(args)
        prune_ended(os.environ)
    say(f"up at {ready['url']}: {ready['description']}")
    _print(ready["url"], "up", args.json, in_words=True)
    return Status.DONE


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """Wait for any other `ciel up` or `ciel down` of this user on this host to end."""
    path = up_lock_path(os.environ)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is certain
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock_fd)


def _start(args: argparse.Namespace) -> dict[str, Any]:
    """Start the cluster where it is told to listen; with port 0 at the first port that is free."""
    any_port = args.listen.endswith(":0")
    try:
        _, host, port = parse_url(args.listen.removesuffix(":0"))
    except ValueError:
        raise UsageError(
            f"--listen: {args.listen[:80]!a} is no address: expected HOST:PORT"
        ) from None
    if not is_loopback(host):
        raise UsageError(
            f"--listen {args.listen}: this cluster is for this computer alone; "
            "start ciel-master and ciel-worker for others"
        )
    for candidate in _PORTS if any_port else (port,):
        if not is_free(host, candidate):
            continue
        try:
            return _start_at(host, candidate, args)
        except ClusterError as error:
            was_taken = TAKEN in error.reason or not is_free(host, candidate)
            if not any_port or not was_taken:
                raise  # else another program was quicker
    if any_port:
        raise NoMasterError("", f"no port of {host} from {_PORTS[0]} to {_PORTS[-1]} is free")
    taken = f"{netloc(host, port)} is taken by {who_listens(host, port)}"
    raise NoMasterError("", f"{taken}; name another address with --listen")


def _start_at(host: str, port: int, args: argparse.Namespace) -> dict[str, Any]:
    path = access_path(os.environ, host, port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = {
        "listen": netloc(host, port),
        "workers": args.workers,
        "slots": args.slots,
        "store": args.store,
        "access": str(path),
        "switches": channel_switches(args),
        "patience": {
            "suspect_after_s": args.suspect_after,
            "worker_timeout_s": args.worker_timeout,
            "kill_grace_s": args.kill_grace,
        },
    }
    return _start_supervisor(config, path.parent / "up.log")


def is_free(host: str, port: int) -> bool:
    """Whether one could listen there; raises UsageError if the address is none of ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise UsageError(f"--listen {netloc(host, port)}: {error.strerror}") from None
        return True


def who_listens(host: str, port: int) -> str:
    """Say who has taken an address."""
    try:
        found = access_file.read(access_path(os.environ, host, port))
    except AccessError:
        return "another program"
    return f"a ciel master (process {found.pid})" if found.is_alive() else "another program"


def _start_supervisor(config: dict[str, Any], log: Path) -> dict[str, Any]:
    """Start the process that holds the cluster, and wait until it is ready."""
    log_start_bytes = log.stat().st_size if log.exists() else 0
    config_fd, our_config_fd = os.pipe()
    our_ready_fd, ready_fd = os.pipe()
    appended = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "ciel.cli.commands.up", "--supervise"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, config_fd, 0),
                (os.POSIX_SPAWN_DUP2, ready_fd, 1),
                (os.POSIX_SPAWN_OPEN, 2, str(log), appended, 0o600),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
    except BaseException:
        os.close(our_config_fd)
        os.close(our_ready_fd)
        raise
    finally:
        os.close(config_fd)
        os.close(ready_fd)
    try:
        with os.fdopen(our_config_fd, "w") as config_file:
            json.dump(config, config_file)
        ready = _read_ready(our_ready_fd, log, log_start_bytes)
    except BaseException:
        os.kill(pid, signal.SIGTERM)  # ours, and not waited for: the number cannot mean another
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(our_ready_fd)
    return ready


def _read_ready(fd: int, log: Path, log_start_bytes: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    said = b""
    while b"\n" not in said:
        readable, _, _ = select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))
        if not readable:
            raise ClusterError("the cluster was not ready in time", log, log_start_bytes)
        data = os.read(fd, _LINE_MAX_BYTES)
        if not data:
            raise ClusterError("the cluster ended before it was ready", log, log_start_bytes)
        said += data
    ready: dict[str, Any] = json.loads(said)
    if "error" in ready:
        kind = ClusterOptionError if ready["status"] == Status.USAGE else ClusterError
        raise kind(ready["error"])
    return ready


# --- the process in the background ----------------------------------------------------------------


class _Ended(BaseException):
    """`ciel down` asked for the end."""


def supervise() -> int:
    """Hold the cluster that the line on standard input describes, until a signal or its death."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        config = json.load(sys.stdin)
        path = Path(config["access"])
        try:
            cluster = _open(config, path)
        except (ClientError, AccessError, OSError) as error:
            status = status_of(error)
            _say_ready({"error": text_of(error), "status": status})
            return status
        with cluster:
            _say_ready({"url": cluster.location.url, "description": cluster.describe()})
            cluster.ended.wait()
        say(cluster.died)
        if cluster.was_shut_down:
            drop_current(os.environ, path)
            return Status.DONE
        # The link stays: by it the next command sees that the cluster has crashed.
        return Status.NO_MASTER
    except _Ended:
        drop_current(os.environ, path)
        return Status.DONE


def _open(config: dict[str, Any], path: Path) -> LocalCluster:
    """Start the cluster, and leave its access file at `path`."""
    from ciel.client.cluster import LocalCluster

    os.chdir(path.parent)
    cluster = LocalCluster(
        workers=config["workers"], slots=config["slots"], store=config["store"],
        listen=config["listen"], directory=path.parent, identity=key_for_start(path),
        switches=config["switches"], **config["patience"],
    )  # fmt: skip
    with contextlib.ExitStack() as undo:
        undo.callback(cluster.close)
        found = cluster.location
        start = process_start(os.getpid()) or 0
        AccessFile(
            found.url, found.control, found.cluster_id, found.key, os.getpid(), start
        ).write(path)  # fmt: skip
        point_current(os.environ, path)
        undo.pop_all()
    return cluster


def _end(number: int, frame: FrameType | None) -> None:
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # the end is not to be interrupted
    raise _Ended


def _say_ready(fields: dict[str, Any]) -> None:
    """Tell `ciel up`, which may be gone, and let go of its pipe."""
    try:
        os.write(1, json.dumps(fields).encode() + b"\n")
    except BrokenPipeError:
        pass
    null_fd = os.open(os.devnull, os.O_RDWR)
    os.dup2(null_fd, 0)
    os.dup2(null_fd, 1)
    os.close(null_fd)


# --- down -----------------------------------------------------------------------------------------


def _down(words: Sequence[str]) -> int:
    parser = make_parser(
        "ciel down",
        "End the local cluster that `ciel up` started. If jobs are unfinished, it asks on a "
        "terminal, and elsewhere refuses with status 1 unless --force says to end them.",
    )
    parser.add_argument("--force", action="store_true", help="end unfinished jobs as well")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(words)
    with _only_one():
        found = _current()
        if found is None:
            raise NoMasterError("", "no cluster of `ciel up` is up on this host")
        path = current_path(os.environ).readlink()
        if found.is_alive():
            if not args.force and not may_end(found):
                _print(found.url, "up", args.json)
                return Status.FAILED
            _end_jobs(found)
        scratch = path.parent / "scratch"
        before = set(scratch.glob("worker-*/*"))
        if not _end_process(found):
            say(f"the cluster at {found.url} had crashed (process {found.pid} is gone)")
        else:
            say(f"the cluster at {found.url} is down")
        if set(scratch.glob("worker-*/*")) - before:
            say(f"what failed tasks left is now in {scratch}")
        drop_current(os.environ, path)
    _print(found.url, "down", args.json)
    return Status.DONE


def _end_jobs(found: AccessFile) -> None:
    """Cancel what runs, so that its programs have their grace; Ctrl-C cuts that short."""
    where = MasterLocation(found.url, found.control, found.cluster_id, found.key, "ciel up")
    try:
        with contextlib.closing(Client(where, name="ciel down")) as client:
            jobs = [read_summary(fields) for fields in client.ask("jobs")]
            going = [job for job in jobs if job.ended_at_s is None]
            if going:
                say(f"cancelling {len(going)} jobs; Ctrl-C kills their programs at once")
            for job in going:
                client.cancel_job(job.id, "the cluster is taken down")
            for job in going:
                client.wait_for_job(job.id, _JOBS_END_TIMEOUT_S)
    except (KeyboardInterrupt, Terminated, WaitTimeoutError):
        pass
    except (ClientClosedError, ClientError, CielError):
        pass  # it is ended all the same


def _current() -> AccessFile | None:
    try:
        return access_file.read(current_path(os.environ))
    except AccessFileMissingError:
        return None


def _end_process(found: AccessFile) -> bool:
    """End the process that holds the cluster, and wait until it has ended; False if it had."""
    try:
        pidfd = os.pidfd_open(found.pid)
    except ProcessLookupError:
        return False
    try:
        if not found.is_alive():  # asked once we hold the process: it may be another by now
            return False
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(pidfd, number)
            if select.select([pidfd], [], [], _DOWN_TIMEOUT_S)[0]:
                return True
    except ProcessLookupError:
        return True
    finally:
        os.close(pidfd)
    raise ClusterError(f"process {found.pid} does not end, not even by SIGKILL")


def _print(url: str, state: str, as_json: bool, *, in_words: bool = False) -> None:
    if as_json:
        print_json({"url": url, "state": state})
    elif in_words:
        print_text(url)


if __name__ == "__main__":
    sys.exit(conclude(supervise) if sys.argv[1:] == ["--supervise"] else Status.USAGE)
