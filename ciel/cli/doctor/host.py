"""The checks of this computer: software, settings, directories and limits."""

from __future__ import annotations

import os
import platform
import resource
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import ciel
from ciel import plugins
from ciel.access import access_file
from ciel.access.addresses import parse_url
from ciel.access.errors import AccessError, AccessFileMissingError, SettingsError
from ciel.access.paths import current_path, state_directory
from ciel.access.settings import Settings, config_path, executor_settings
from ciel.cli.connection import interrupted
from ciel.cli.daemons.executors import load_executors
from ciel.cli.daemons.ports import is_free, who_listens
from ciel.cli.doctor.findings import OK, Finding, fault, note, ok, settings_fault
from ciel.cli.outcome import UsageError
from ciel.cli.output.tables import size_text
from ciel.launch import Launcher, LaunchError
from ciel.launch.memory import memory_of_host
from ciel.storage.errors import StorageError
from ciel.storage.specs import DEFAULT, GROUP, VARIABLE, load_kind

LIBRARIES: Final = ("twisted", "pycurl", "simplejson", "orjson", "xxhash", "cffi", "cloudpickle")
_SHARED_MEMORY: Final = "/dev/shm"
SHARED_MEMORY: Final = Path(_SHARED_MEMORY)
SHARED_MEMORY_MIN_BYTES: Final = 256 << 20
"""Less shared memory is a finding: many containers have 64 MiB, too little for a store."""

OPEN_FILES_MIN: Final = 4096
"""A lower limit of open files is a finding: a daemon needs one for each peer, input and transfer.
"""

PROCESSES_MIN: Final = 512
FREE_MIN_BYTES: Final = 1 << 30
MEMORY_MIN_BYTES: Final = 512 << 20
"""Less memory is a fault: a master and a worker take about 100 MiB."""

_PROBE = "ciel-doctor-"


def check_host(environ: Mapping[str, str]) -> list[Finding]:
    """Run all checks of this computer."""
    software = list(check_software())
    has_libraries = OK in {one.state for one in software if one.check == "libraries"}
    stores = _store(environ) if has_libraries else ()  # the stores need the libraries
    return [
        *software, *_settings(environ), *stores, *_state(environ),
        _temporary(environ), _shared_memory(environ), _open_files(), *_limits(), _memory(),
        *_executors(environ), _compiler(),
    ]  # fmt: skip


# --- software -------------------------------------------------------------------------------------


def check_software(program: Path | None = None) -> Iterator[Finding]:
    """Check libraries and the launcher. `program`: another launcher than the installed one."""
    yield ok(
        "software",
        f"ciel {ciel.__version__}, Python {platform.python_version()} ({sys.executable}), "
        f"{platform.system()} {platform.release()} {platform.machine()}",
    )
    broken = []
    for name in LIBRARIES:
        try:
            import_module(name)
        except Exception as error:  # a half-installed library may raise anything
            broken.append(name)
            yield fault(
                "libraries", f"{name} cannot be loaded: {error}",
                f"{shlex.quote(sys.executable)} -m pip install --force-reinstall {name}",
            )  # fmt: skip
    if not broken:
        yield ok("libraries", ", ".join(LIBRARIES))
    try:
        with Launcher.start_process(program=program):
            yield ok("launcher", "it starts and ends")
    except (LaunchError, OSError) as error:
        yield fault(
            "launcher", f"it cannot start programs: {error}",
            "install ciel again on a host with a C compiler; in a checkout: make -B dev",
        )  # fmt: skip


def _executors(environ: Mapping[str, str]) -> Iterator[Finding]:
    try:
        found = load_executors(environ)
    except SettingsError:
        return  # `_settings` reports it
    yield ok("executors", ", ".join(found.offered))
    for name, why in found.lacking.items():
        yield note("executors", f"{name} is not available here: {why}")


def _compiler() -> Finding:
    asked = [sys.executable, "-m", "ciel.executors.sdk.heap.compiler", "--check"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        return note("ciel-cc", f"it compiles nothing here: {done.stderr.strip()}")
    return ok("ciel-cc", done.stdout.strip())


# --- settings -------------------------------------------------------------------------------------


def _settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    path, _ = config_path(environ)
    try:
        settings = dict(Settings({}, environ))
        executors = executor_settings(environ)
    except SettingsError as error:
        yield settings_fault(error)
        return
    origins = [f"{name} from {setting.origin}" for name, setting in settings.items()]
    origins += [f"executor {name} from {setting.origin}" for name, setting in executors.items()]
    where = str(path) if path.exists() else f"no {path}"
    yield ok("settings", "; ".join([where, *origins]))


def _store(environ: Mapping[str, str]) -> Iterator[Finding]:
    known = ", ".join(plugins.names(GROUP))
    spec = environ.get(VARIABLE) or DEFAULT
    try:
        places = _places(environ)
    except (StorageError, plugins.PluginError) as error:
        yield fault("store", f"{VARIABLE}={spec}: {error}", f"set it to: {known}")
        return
    text = spec if VARIABLE in environ else f"{spec}, unless a worker's --store names another"
    yield ok("store", f"{text} (installed: {known})")
    for place in places:
        if place != _SHARED_MEMORY:  # `_shared_memory` checks it
            yield _writable("store directory", Path(place), f"an option in {VARIABLE}")


def _places(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the directories outside of work directories to which the default store writes.

    Raises StorageError and PluginError.
    """
    kind, _, options = load_kind(environ.get(VARIABLE) or DEFAULT)
    return kind.places(options)


# --- directories ----------------------------------------------------------------------------------


def _state(environ: Mapping[str, str]) -> Iterator[Finding]:
    directory = state_directory(environ)
    yield _writable("state", directory, "XDG_STATE_HOME or HOME")
    trusted = 0
    for path in sorted(directory.glob("*/access.json")) if directory.is_dir() else ():
        try:
            access_file.read(path)
            trusted += 1
        except AccessFileMissingError:
            continue  # it was removed meanwhile
        except AccessError as error:
            advice = "" if "type: " in str(error) else f"remove it: rm {shlex.quote(str(path))}"
            yield fault("keys", str(error), advice or f"chmod go= {shlex.quote(str(path))}")
        else:
            mode = stat.S_IMODE(path.parent.stat().st_mode)
            if mode & 0o077:
                yield note(
                    "keys", f"other users may access {path.parent} (mode {mode:04o})",
                    f"chmod go= {shlex.quote(str(path.parent))}",
                )  # fmt: skip
    yield ok(
        "keys",
        f"{trusted} {'file' if trusted == 1 else 'files'} with keys, readable only by this user",
    )
    if gone := interrupted():
        logs = current_path(environ).resolve().parent
        yield fault(
            "crash", f"the cluster at {gone.url} was interrupted: process {gone.pid} has ended",
            f"its logs are in {logs}; `ciel up` continues its jobs, `ciel down` removes them",
        )  # fmt: skip


def _writable(check: str, directory: Path, named_by: str) -> Finding:
    """Check whether a directory can be written to, or created."""
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest, prefix=_PROBE):
            return ok(check, str(directory))
    except OSError as error:
        return fault(
            check, f"{directory}: this user cannot write to {nearest}: {error.strerror}",
            f"make it a directory that this user may write to, or name another by {named_by}",
        )  # fmt: skip


def _temporary(environ: Mapping[str, str]) -> Finding:
    check = "temporary"
    named = environ.get("TMPDIR")
    directory = Path(named or tempfile.gettempdir())
    found = _writable(check, directory, "TMPDIR")
    if found.state != OK:
        return found
    if not directory.is_dir():
        advice = f"mkdir {shlex.quote(str(directory))}"
        return fault(check, f"TMPDIR names {directory}, which does not exist", advice)
    status = os.statvfs(directory)
    free_bytes = status.f_bavail * status.f_frsize
    if status.f_flag & os.ST_NOEXEC:
        return fault(
            check, f"{directory} is mounted noexec, so that tasks cannot run the programs of jobs",
            "name another directory by TMPDIR, or give workers one with --spool",
        )  # fmt: skip
    if free_bytes < FREE_MIN_BYTES:
        return note(
            check, f"{directory} has {size_text(free_bytes)} left, for objects and scratch files",
            "free space, or give workers another directory with --spool",
        )  # fmt: skip
    return ok(check, f"{directory}, {size_text(free_bytes)} free")


def _shared_memory(environ: Mapping[str, str]) -> Finding:
    check = "shared memory"
    try:
        in_use = _SHARED_MEMORY in _places(environ)
    except (StorageError, plugins.PluginError):
        in_use = False  # `_store` reports it
    report = fault if in_use else note
    advice = f"mount -o remount,size=50% {SHARED_MEMORY}; for a container: --shm-size=2g"
    try:
        status = os.statvfs(SHARED_MEMORY)
        with tempfile.TemporaryFile(dir=SHARED_MEMORY, prefix=_PROBE):
            pass
    except OSError as error:
        return report(check, f"{SHARED_MEMORY} cannot be used: {error.strerror}", advice)
    total_bytes = status.f_blocks * status.f_frsize
    free = size_text(status.f_bavail * status.f_frsize)
    text = f"{SHARED_MEMORY}, {free} of {size_text(total_bytes)} free"
    if total_bytes < SHARED_MEMORY_MIN_BYTES:
        return report(check, f"{text}: stores in memory have little room", advice)
    return ok(check, text)


# --- limits ---------------------------------------------------------------------------------------


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES_MIN:
        return fault(
            "open files", f"at most {hard}; a daemon may need {OPEN_FILES_MIN} and more",
            "raise the hard limit: ulimit -Hn, nofile in /etc/security/limits.conf, or "
            "LimitNOFILE= of a systemd service",
        )  # fmt: skip
    return ok("open files", f"{_limit(soft)} for programs, {_limit(hard)} for daemons")


def _limits() -> Iterator[Finding]:
    for check, number, option, need in (
        ("file size", resource.RLIMIT_FSIZE, "-f", resource.RLIM_INFINITY),
        ("address space", resource.RLIMIT_AS, "-v", resource.RLIM_INFINITY),
        ("processes", resource.RLIMIT_NPROC, "-u", PROCESSES_MIN),
    ):
        soft, _ = resource.getrlimit(number)
        if soft == resource.RLIM_INFINITY or 0 <= need <= soft:
            yield ok(check, _limit(soft))
            continue
        most = f"at most {soft}" if check == "processes" else f"at most {size_text(soft)}"
        wants = "unlimited" if need == resource.RLIM_INFINITY else str(need)
        yield fault(
            check, f"{most}: daemons and tasks that reach this limit fail",
            f"ulimit {option} {wants}, or the line for it in /etc/security/limits.conf",
        )  # fmt: skip


def _limit(number: int) -> str:
    return "no limit" if number == resource.RLIM_INFINITY else str(number)


def _memory() -> Finding:
    """Check how much memory this host has, within the limit of the control group."""
    size_bytes = memory_of_host()
    text = f"{size_text(size_bytes)} and {len(os.sched_getaffinity(0))} cores to use"
    if 0 < size_bytes < MEMORY_MIN_BYTES:
        return fault(
            "memory",
            text,
            "allow 512MiB or more: MemoryMax= of a systemd service, --memory of a container",
        )
    return ok("memory", text)


# --- the address of a master ----------------------------------------------------------------------


def check_address(listen: str) -> list[Finding]:
    """Check whether a master could listen at an address."""
    check = "address"
    try:
        _, host, port = parse_url(listen.removesuffix(":0"))
        if listen.endswith(":0") or is_free(host, port):
            return [
                ok(check, f"no cluster is configured or running; {listen} is free for a master")
            ]
        taken = who_listens(host, port)
    except ValueError:
        raise UsageError(
            f"--listen: {listen[:80]!a} is not an address: expected HOST:PORT"
        ) from None
    return [
        fault(
            check, f"no cluster is configured or running, and {listen} is taken by {taken}",
            f"name the cluster with CIEL_MASTER, or start one elsewhere: ciel up --listen {host}:0",
        )
    ]  # fmt: skip
