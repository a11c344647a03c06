"""`ciel up` and `ciel down`: start and end a local cluster, which `daemons.supervisor` runs."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import select
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from ciel.access import access_file
from ciel.access.access_file import AccessFile
from ciel.access.addresses import TAKEN, is_loopback, netloc, parse_url
from ciel.access.errors import AccessFileMissingError
from ciel.access.paths import (
    access_path,
    current_path,
    drop_current,
    up_lock_path,
)
from ciel.access.pruning import prune_ended
from ciel.access.settings import MasterLocation
from ciel.cli.connection import crashed
from ciel.cli.daemons import supervisor
from ciel.cli.daemons.channels import add_channel_options, channel_switches
from ciel.cli.daemons.ports import DEFAULT_LISTEN, is_free, who_listens
from ciel.cli.daemons.timeouts import add_kill_grace, add_worker_limits
from ciel.cli.jobs.unfinished import may_end
from ciel.cli.outcome import Status, Terminated, UsageError, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import WORKERS_MAX, make_parser
from ciel.cli.parsing.parser import whole_number
from ciel.client.client import Client
from ciel.client.errors import (
    ClientClosedError,
    ClientError,
    ClusterError,
    NoMasterError,
    WaitTimeoutError,
)
from ciel.core.errors import CielError
from ciel.core.tasks import SLOTS_MAX
from ciel.wire.descriptors import read_summary

_PORTS = range(20000, 32768)  # Java clients read ports as signed 16-bit numbers
_DOWN_TIMEOUT_S = 15.0
_JOBS_END_TIMEOUT_S = 30.0


def main(prog: str, words: Sequence[str]) -> int:
    """Run `ciel up` or `ciel down`."""
    return _up(words) if prog == "up" else _down(words)


# --- up -------------------------------------------------------------------------------------------


def _up(words: Sequence[str]) -> int:
    parser = make_parser("ciel up", "Start a local cluster in the background; `ciel down` ends it.")
    parser.add_argument(
        "--workers",
        type=whole_number(1, WORKERS_MAX),
        default=1,
        metavar="N",
        help="how many workers to start (default 1)",
    )
    parser.add_argument(
        "--slots", type=whole_number(1, SLOTS_MAX), metavar="N",
        help="slots of each worker (default: the cores, divided among the workers)",
    )  # fmt: skip
    parser.add_argument(
        "--store",
        metavar="SPEC",
        help="disk, shm or scc, options after a colon (default: CIEL_STORE, or disk)",
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN,
        help="the address of the master (default %(default)s; port 0 means any free port)",
    )  # fmt: skip
    add_worker_limits(parser)
    add_kill_grace(parser)
    add_channel_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(words)
    with _exclusively():
        if (up := _current()) is not None and up.is_alive():
            say(f"already up at {up.url}; `ciel down` ends it")
            _print(up.url, "up", args.json, in_words=True)
            return Status.DONE
        if gone := crashed():
            say(f"the last cluster, at {gone.url}, had crashed (process {gone.pid} has ended)")
        ready = _start(args)
        prune_ended(os.environ)
    say(f"up at {ready['url']}: {ready['description']}")
    _print(ready["url"], "up", args.json, in_words=True)
    return Status.DONE


@contextlib.contextmanager
def _exclusively() -> Iterator[None]:
    """Wait until no other `ciel up` or `ciel down` of this user runs on this host."""
    path = up_lock_path(os.environ)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock_fd)


def _start(args: argparse.Namespace) -> dict[str, Any]:
    """Start the cluster at the address of --listen; with port 0, at the first free port."""
    any_port = args.listen.endswith(":0")
    try:
        _, host, port = parse_url(args.listen.removesuffix(":0"))
    except ValueError:
        raise UsageError(
            f"--listen: {args.listen[:80]!a} is not an address: expected HOST:PORT"
        ) from None
    if not is_loopback(host):
        raise UsageError(
            f"--listen {args.listen}: a cluster of `ciel up` serves this computer only; start "
            "ciel-master and ciel-worker for other hosts"
        )
    for candidate in _PORTS if any_port else (port,):
        if not is_free(host, candidate):
            continue
        try:
            return _start_at(host, candidate, args)
        except ClusterError as error:
            was_taken = TAKEN in error.reason or not is_free(host, candidate)
            if not any_port or not was_taken:
                raise  # with port 0 another program may have taken the port meanwhile
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
    return supervisor.start(config, path.parent / "up.log")


# --- down -----------------------------------------------------------------------------------------


def _down(words: Sequence[str]) -> int:
    parser = make_parser(
        "ciel down",
        "End the local cluster that `ciel up` started. If jobs are unfinished, it asks on a "
        "terminal, and otherwise fails with status 1 unless --force is given.",
    )
    parser.add_argument("--force", action="store_true", help="end unfinished jobs as well")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(words)
    with _exclusively():
        found = _current()
        if found is None:
            raise NoMasterError("", "no cluster of `ciel up` is running on this host")
        path = current_path(os.environ).readlink()
        if found.is_alive():
            if not args.force and not may_end(found):
                _print(found.url, "up", args.json)
                return Status.FAILED
            _end_jobs(found)
        scratch = path.parent / "scratch"
        before = set(scratch.glob("worker-*/*"))
        if not _end_process(found):
            say(f"the cluster at {found.url} had crashed (process {found.pid} has ended)")
        else:
            say(f"the cluster at {found.url} is down")
        if set(scratch.glob("worker-*/*")) - before:
            say(f"files of failed tasks are now in {scratch}")
        drop_current(os.environ, path)
    _print(found.url, "down", args.json)
    return Status.DONE


def _end_jobs(found: AccessFile) -> None:
    """Cancel all jobs, so that their programs get their grace period; Ctrl-C ends the wait."""
    where = MasterLocation(found.url, found.control, found.cluster_id, found.key, "ciel up")
    try:
        with contextlib.closing(Client(where, name="ciel down")) as client:
            jobs = [read_summary(fields) for fields in client.ask("jobs")]
            unfinished = [job for job in jobs if job.ended_at_s is None]
            if unfinished:
                say(f"cancelling {len(unfinished)} jobs; Ctrl-C kills their programs at once")
            for job in unfinished:
                client.cancel_job(job.id, "`ciel down` ends the cluster")
            for job in unfinished:
                client.wait_for_job(job.id, _JOBS_END_TIMEOUT_S)
    except (KeyboardInterrupt, Terminated, WaitTimeoutError):
        pass
    except (ClientClosedError, ClientError, CielError):
        pass  # the cluster is ended in any case


def _current() -> AccessFile | None:
    try:
        return access_file.read(current_path(os.environ))
    except AccessFileMissingError:
        return None


def _end_process(found: AccessFile) -> bool:
    """End the process that owns the cluster, and wait for its end; False if it has ended before."""
    try:
        pidfd = os.pidfd_open(found.pid)
    except ProcessLookupError:
        return False
    try:
        if (
            not found.is_alive()
        ):  # checked after the descriptor is open: the process id is not reused now
            return False
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(pidfd, number)
            if select.select([pidfd], [], [], _DOWN_TIMEOUT_S)[0]:
                return True
    except ProcessLookupError:
        return True
    finally:
        os.close(pidfd)
    raise ClusterError(f"process {found.pid} of the cluster has not ended, even after SIGKILL")


def _print(url: str, state: str, as_json: bool, *, in_words: bool = False) -> None:
    if as_json:
        print_json({"url": url, "state": state})
    elif in_words:
        print_text(url)
