"""`ciel up` and `ciel down`: start and end a local cluster, which `daemons.supervisor` runs."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import select
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ciel import plugins
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
from ciel.access.pruning import KV_NAME, prune_ended
from ciel.access.settings import location_of
from ciel.cli.connection import interrupted
from ciel.cli.daemons import supervisor
from ciel.cli.daemons.channels import add_channel_options, channel_switches
from ciel.cli.daemons.ports import DEFAULT_LISTEN, is_free, who_listens
from ciel.cli.daemons.stores import add_verify
from ciel.cli.daemons.timeouts import add_kill_grace, add_worker_limits
from ciel.cli.jobs.unfinished import may_end, unfinished, unfinished_in
from ciel.cli.launchers.allocations import end_allocations
from ciel.cli.launchers.autoscaler import CONFIG
from ciel.cli.launchers.options import (
    add_launcher_options,
    check_launcher,
    described,
    named_launcher,
    own_address,
    split_words,
    worker_range,
    write_config,
)
from ciel.cli.outcome import Status, Terminated, UsageError, say
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import make_parser
from ciel.cli.parsing.parser import Parser, whole_number
from ciel.client.client import Client
from ciel.client.cluster.run_directories import can_resume, forget, journal_directory
from ciel.client.errors import (
    ClientClosedError,
    ClientError,
    ClusterError,
    NoMasterError,
    WaitTimeoutError,
)
from ciel.core.errors import CielError
from ciel.core.tasks import SLOTS_MAX
from ciel.journal.file_journal import ALWAYS, SYNC_MODES
from ciel.storage.specs import describe_kinds
from ciel.wire.descriptors import read_summary

_PORTS = range(20000, 32768)  # Java clients read ports as signed 16-bit numbers
_DOWN_TIMEOUT_S = 15.0
_JOBS_END_TIMEOUT_S = 30.0
EMBEDDED = "embedded"
_OPTIONS = "up.json"
"""The file with the options of the cluster, which a `ciel up` that continues it reads."""
_OF_ONE_START = ("listen", "fresh", "json")


def main(prog: str, words: Sequence[str]) -> int:
    """Run `ciel up` or `ciel down`."""
    return _up(words) if prog == "up" else _down(words)


# --- up -------------------------------------------------------------------------------------------


def _up(words: Sequence[str]) -> int:
    words, launcher_words = split_words(words)
    on = named_launcher(words)
    args = _parser(on).parse_args(words)
    check_launcher(args, launcher_words)
    with _exclusively():
        if (up := _current()) is not None and up.is_alive():
            say(f"already up at {up.url}; `ciel down` ends it")
            _print(up.url, "up", args.json, in_words=True)
            return Status.DONE
        if gone := interrupted():
            say(f"the last cluster, at {gone.url}, was interrupted (process {gone.pid} has ended)")
        args = _continued(on, words, launcher_words)
        ready = _start(args)
        prune_ended(os.environ)
    if ready["jobs"]:
        jobs = f"jobs: {ready['jobs']}, unfinished: {ready['unfinished']}"
        say(f"continues the earlier cluster ({jobs}); `ciel up --fresh` would start an empty one")
    say(f"up at {ready['url']}: {ready['description']}")
    _print(ready["url"], "up", args.json, in_words=True)
    return Status.DONE


def _parser(on: str | None) -> Parser:
    parser = make_parser(
        "ciel up",
        "Start a local cluster in the background; `ciel down` ends it. If the last cluster was "
        "interrupted, continue its jobs with the same options. With --on, workers run elsewhere, "
        "and come as tasks wait.",
    )
    parser.add_argument(
        "--workers",
        type=worker_range,
        metavar="N",
        help="how many workers to start (default 1); with --on: N..M, at least N and at most M",
    )
    add_launcher_options(parser, on)
    parser.add_argument(
        "--slots", type=whole_number(1, SLOTS_MAX), metavar="N",
        help="slots of each worker (default: the cores, divided among the workers)",
    )  # fmt: skip
    parser.add_argument(
        "--store",
        metavar="SPEC",
        help=describe_kinds(),
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT",
        help=f"the address of the master (default {DEFAULT_LISTEN}, or that of the interrupted "
        "cluster; port 0 means any free port)",
    )  # fmt: skip
    parser.add_argument(
        "--journal-sync", choices=SYNC_MODES, default=ALWAYS,
        help="when the master's journal is written to the disk: before anything that depends on it "
        "is sent (always, the default), once a second (interval), or when the system does it (off)",
    )  # fmt: skip
    parser.add_argument(
        "--kv", nargs="?", const=EMBEDDED, default="", metavar="URL",
        help="give the cluster a key-value base: LMDB in the directory of the cluster, which stays "
        "when the cluster ends, or the base at a URL",
    )  # fmt: skip
    parser.add_argument(
        "--fresh", action="store_true",
        help="start empty: remove the jobs and objects of an interrupted cluster",
    )  # fmt: skip
    add_verify(parser)
    add_worker_limits(parser)
    add_kill_grace(parser)
    add_channel_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser


def _continued(
    on: str | None, words: Sequence[str], launcher_words: Sequence[str]
) -> argparse.Namespace:
    """Return the options of the cluster to start.

    If there is an interrupted cluster to continue, these are its options, except those that the
    command line names. With --fresh, remove what it has left.
    """
    args: argparse.Namespace = _parser(on).parse_args(words)
    check_launcher(args, launcher_words)
    path = _candidate(args.listen)
    if path is None or not can_resume(path.parent):
        args.listen = args.listen or (f"{own_address()}:0" if on else DEFAULT_LISTEN)
        return args
    address = access_file.read(path).url.partition("://")[2]
    if args.fresh:
        end_allocations(path)
        forget(path.parent)
        args.listen = args.listen or address
        return args
    with contextlib.suppress(FileNotFoundError):  # its start was interrupted
        saved = json.loads((path.parent / _OPTIONS).read_text())
        on = on or saved.get("on")
        args = _parser(on).parse_args(words, argparse.Namespace(**saved))
        check_launcher(args, launcher_words or saved.get("words", ()))
    args.listen = address
    return args


def _candidate(listen: str | None) -> Path | None:
    """Return the access file of a cluster that may have been interrupted.

    It is the cluster at `listen` if that has a port, else the last cluster, else the one at the
    default address. None if the file is missing, or its master runs.
    """
    if (listen is None or listen.endswith(":0")) and interrupted():
        return current_path(os.environ).readlink()
    with contextlib.suppress(ValueError, AccessFileMissingError):
        _, host, port = parse_url(listen or DEFAULT_LISTEN)
        path = access_path(os.environ, host, port)
        return None if access_file.read(path).is_alive() else path
    return None  # a wrong address is reported when the cluster starts


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
    if not is_loopback(host) and args.on is None:
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
    if can_resume(access_path(os.environ, host, port).parent):
        advice = "it is the address of the interrupted cluster: end that program first"
        raise NoMasterError("", f"{taken}; {advice}, or start an empty cluster: ciel up --fresh")
    raise NoMasterError("", f"{taken}; name another address with --listen")


def _start_at(host: str, port: int, args: argparse.Namespace) -> dict[str, Any]:
    path = access_path(os.environ, host, port)
    directory = path.parent
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    switches = [*channel_switches(args), *_kv_switches(args.kv, directory)]
    (directory / CONFIG).unlink(missing_ok=True)
    if args.on:
        write_config(args, directory, switches)
    config = {
        "listen": netloc(host, port),
        "workers": 0 if args.on else args.workers[0],
        "on": args.on,
        "slots": args.slots,
        "store": args.store,
        "verify": args.verify,
        "access": str(path),
        "switches": switches,
        "journal_sync": args.journal_sync,
        "patience": {
            "suspect_after_s": args.suspect_after,
            "worker_timeout_s": args.worker_timeout,
            "kill_grace_s": args.kill_grace,
        },
    }
    ready = supervisor.start(config, directory / "up.log")
    if args.on:
        ready["description"] = described(args, directory)
    options = {name: value for name, value in vars(args).items() if name not in _OF_ONE_START}
    (directory / _OPTIONS).write_text(json.dumps(options))
    return ready


def _kv_switches(kv: str, directory: Path) -> list[str]:
    """Return the options of all daemons for the key-value base that --kv names."""
    if not kv:
        return []
    url = f"lmdb:{directory / KV_NAME}" if kv == EMBEDDED else kv
    try:
        plugins.load("ciel.kv", url.partition(":")[0])
    except plugins.PluginError as error:
        raise UsageError(f"--kv {kv}: {error}; `pip install 'ciel[kv]'`?") from None
    return ["--kv", url]


# --- down -----------------------------------------------------------------------------------------


def _down(words: Sequence[str]) -> int:
    parser = make_parser(
        "ciel down",
        "End the local cluster that `ciel up` started, and remove its jobs and objects. If jobs "
        "are unfinished, it asks on a terminal, and otherwise fails with status 1 unless --force "
        "is given.",
    )
    parser.add_argument("--force", action="store_true", help="end unfinished jobs as well")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    args = parser.parse_args(words)
    with _exclusively():
        found = _current()
        if found is None:
            raise NoMasterError("", "no cluster of `ciel up` is running on this host")
        path = current_path(os.environ).readlink()
        is_alive = found.is_alive()
        if not args.force:
            names = unfinished(found) if is_alive else unfinished_in(journal_directory(path.parent))
            if not may_end(found.url, names, is_alive=is_alive):
                _print(found.url, "up" if is_alive else "interrupted", args.json)
                return Status.FAILED
        if is_alive:
            _end_jobs(found)
        scratch = path.parent / "scratch"
        before = set(scratch.glob("worker-*/*"))
        if not _end_process(found):
            say(f"the cluster at {found.url} was interrupted (process {found.pid} has ended)")
        else:
            say(f"the cluster at {found.url} is down")
        if not end_allocations(path):
            return Status.FAILED
        if set(scratch.glob("worker-*/*")) - before:
            say(f"files of failed tasks are now in {scratch}")
        forget(path.parent)
        drop_current(os.environ, path)
    _print(found.url, "down", args.json)
    return Status.DONE


def _end_jobs(found: AccessFile) -> None:
    """Cancel all jobs, so that their programs get their grace period; Ctrl-C ends the wait."""
    try:
        where = location_of(found, "ciel up")
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
