"""Brings workers as jobs of Slurm: one `sbatch` for a request, an array with a job for each worker.

The name of the jobs contains the cluster's id. So any process of the user finds them again, and
`squeue` shows whose they are. The formats of `squeue`, `sacct` and `scontrol` that it reads exist
in Slurm 20.11 and later.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ciel.launchers.commands import WORKER, call, check_words, last_line, worker_command
from ciel.launchers.interface import (
    Allocation,
    LauncherError,
    LauncherOptionError,
    Phase,
    Site,
    WorkerSize,
)

_QUEUED: Final = frozenset((
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
))  # fmt: skip
_RUNNING: Final = frozenset((
    "RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING",
))  # fmt: skip
_SEPARATOR: Final = "|"
_LISTED: Final = "%i|%T|%N|%r"
_LOG_TAIL_BYTES: Final = 4096
_is_id = re.compile(r"\d+_\d+", re.ASCII).fullmatch

_OWN = "ciel sets it"
_ONE_EACH = "each worker gets a job of its own; --workers says how many"
_LIMIT = "use --time of ciel up, before the --, so that workers know it as well"
FORBIDDEN: Final = {
    "--array": _ONE_EACH, "-a": _ONE_EACH, "--nodes": _ONE_EACH, "-N": _ONE_EACH,
    "--ntasks": _ONE_EACH, "-n": _ONE_EACH, "--job-name": _OWN, "-J": _OWN, "--output": _OWN,
    "-o": _OWN, "--error": _OWN, "-e": _OWN, "--input": _OWN, "-i": _OWN, "--parsable": _OWN,
    "--wrap": _OWN, "--wait": _OWN, "-W": _OWN, "--test-only": _OWN, "--requeue": _OWN,
    "--open-mode": _OWN, "--export": "workers inherit the environment of ciel up",
    "--time": _LIMIT, "-t": _LIMIT,
}  # fmt: skip
"""Options of `sbatch` that contradict what ciel passes."""
_VALUED: Final = "AaBbCcDdeFGgiJLMmNnoPpqStwx"

_SCRIPT = """\
#!/bin/sh
# A worker of the cluster {cluster} of ciel.
memory=
[ "${{SLURM_MEM_PER_NODE:-0}}" -gt 0 ] && memory=${{SLURM_MEM_PER_NODE}}MiB
[ "${{SLURM_MEM_PER_CPU:-0}}" -gt 0 ] && memory=$((SLURM_MEM_PER_CPU * SLURM_CPUS_ON_NODE))MiB
{access}
{run} {command} ${{memory:+--memory "$memory"}}
"""

_FROM_FILE = """\
access={path}
if [ ! -r "$access" ]; then
    echo "host $(hostname) cannot read $access: share it, or use ciel up --share-access environment"
    exit 3
fi >&2"""

_FROM_ENVIRONMENT = """\
umask 077
worker=
trap 'ended=1; kill -TERM $worker' TERM
access=$(mktemp) || exit 3
trap 'rm -f "$access"' EXIT
printf %s "$CIEL_ACCESS_TEXT" >"$access"
unset CIEL_ACCESS_TEXT
run() {
    "$@" &
    worker=$!
    [ -z "$ended" ] || kill -TERM "$worker"
    while wait "$worker"; status=$?; kill -0 "$worker"; do :; done 2>&-
    exit "$status"
}"""
"""`sh` stays, to remove the file, and passes SIGTERM on, so that the worker ends its programs."""


class SlurmLauncher:
    """Asks Slurm for workers. `words`: options of `sbatch`."""

    def __init__(self, site: Site, options: Mapping[str, Any], words: Sequence[str]) -> None:
        self.poll_s: float = options["poll"]
        self._site = site
        self._words = list(words)
        self._shares_file = options["share_access"] == "path"
        self._program = options["worker_command"] or shlex.quote(str(_worker_here()))
        self._name = f"ciel-{site.cluster_id}"
        self._log = site.directory / "slurm"
        self._alive: set[str] = set()  # requested, or listed by the last call
        self._reasons: dict[str, str] = {}  # of ended jobs
        self.size = WorkerSize(_number_after(words, "--cpus-per-task", "-c"))

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--share-access", choices=("path", "environment"), default="path",
            help="how workers get the access file of the cluster, with its key: by its path, on a "
            "file system that all hosts share (default), or in the environment of their jobs",
        )  # fmt: skip
        add(
            "--poll", type=float, default=10.0, metavar="SECONDS",
            help="time between two calls of squeue (default %(default)g)",
        )  # fmt: skip
        add(
            "--worker-command", metavar="COMMAND",
            help="the command that starts a worker there (default: the path of ciel-worker here)",
        )  # fmt: skip

    @staticmethod
    def check(options: Mapping[str, Any], words: Sequence[str]) -> tuple[int, int] | None:
        check_words(words, FORBIDDEN, _VALUED, "sbatch")
        if not options["poll"] > 0:
            raise LauncherOptionError("--poll must be a positive number of seconds")
        return None

    # --- requests ---------------------------------------------------------------------------------

    def request(self, count: int) -> list[str]:
        self._log.mkdir(mode=0o700, exist_ok=True)
        command = [
            "sbatch", "--parsable", f"--job-name={self._name}", f"--array=1-{count}",
            "--no-requeue", "--nodes=1", "--ntasks=1", "--open-mode=append",
            f"--output={self._log}/%A_%a.log", *self._time_limit(), *self._words,
        ]  # fmt: skip
        printed = call(command, self._script(), self._environ())
        job = printed.strip().partition(";")[0]
        if not job.isdecimal():
            raise LauncherError(f"sbatch has printed no job id: {printed[:80]!a}")
        ids = [f"{job}_{number}" for number in range(1, count + 1)]
        self._alive.update(ids)
        return ids

    def _time_limit(self) -> list[str]:
        limit_s = round(self._site.time_limit_s)
        return [f"--time={limit_s // 60}:{limit_s % 60:02}"] if limit_s else []

    def _environ(self) -> dict[str, str]:
        environ = dict(os.environ)
        for name in ("CIEL_MASTER", "CIEL_ACCESS", "CIEL_ACCESS_TEXT"):
            environ.pop(name, None)
        if not self._shares_file:
            environ["CIEL_ACCESS_TEXT"] = self._site.access_path.read_text()
        return environ

    def _script(self) -> str:
        own = {
            "--access": '"$access"',
            "--allocation": '"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
            "--slots": '"${SLURM_CPUS_ON_NODE:-1}"',
        }
        access, run = _FROM_ENVIRONMENT, "run"
        if self._shares_file:
            access = _FROM_FILE.format(path=shlex.quote(str(self._site.access_path)))
            run = "exec"
        return _SCRIPT.format(
            cluster=self._site.cluster_id, access=access, run=run,
            command=worker_command(self._program, self._site, own),
        )  # fmt: skip

    # --- allocations ------------------------------------------------------------------------------

    def allocations(self) -> list[Allocation]:
        found = parse_queue(call([
            "squeue", "--noheader", "--array", "--states=all", f"--name={self._name}",
            f"--format={_LISTED}",
        ]))  # fmt: skip
        listed = {allocation.id for allocation in found}
        found += [Allocation(name, Phase.ENDED) for name in sorted(self._alive - listed)]
        result = []
        for allocation in found:
            if allocation.phase is Phase.ENDED:
                allocation = allocation._replace(reason=self._why_ended(allocation))
            result.append(allocation)
        self._alive = {a.id for a in found if a.phase is not Phase.ENDED}
        return result

    def _why_ended(self, allocation: Allocation) -> str:
        """Say how a job has ended, with the last line of its log; asked once for each job."""
        name = allocation.id
        if name not in self._reasons:
            if name not in self._alive:
                return allocation.reason
            how = _from_accounting(name) or allocation.reason or "has left the queue"
            said = _tail(self._log / f"{name}.log")
            self._reasons[name] = f"{how}; its log ends: {said}" if said else how
        return self._reasons[name]

    def cancel(self, ids: Sequence[str]) -> None:
        if wanted := [name for name in ids if _is_id(name)]:
            call(["scancel", "--quiet", *wanted])

    def close(self) -> None:
        """Do nothing: this process holds nothing."""


def parse_queue(text: str) -> list[Allocation]:
    """Read what `squeue` prints in our format. A line that has another form is ignored."""
    found = []
    for line in text.splitlines():
        fields = line.split(_SEPARATOR, 3)
        if len(fields) != 4 or not _is_id(fields[0]):
            continue
        name, state, place, reason = fields
        reason = "" if reason in ("None", "(null)") else reason
        if state in _QUEUED:
            found.append(Allocation(name, Phase.QUEUED, reason))
        elif state in _RUNNING:
            found.append(Allocation(name, Phase.RUNNING, "", place))
        else:
            how = f"has ended as {state}" + (f" ({reason})" if reason else "")
            found.append(Allocation(name, Phase.ENDED, how, place))
    return found


def parse_accounting(text: str) -> str:
    """Read what `sacct --parsable2` prints of one job: its state, exit status and reason."""
    for line in text.splitlines():
        fields = line.split(_SEPARATOR)
        if len(fields) >= 2 and fields[0]:
            status, _, number = fields[1].partition(":")
            how = f"has ended as {fields[0]}"
            if number not in ("", "0"):
                return f"{how} by signal {number}"
            return f"{how} with status {status}" if status not in ("", "0") else how
    return ""


def _from_accounting(name: str) -> str:
    """Return how a job has ended: from `sacct`, or from `scontrol` where nothing is accounted."""
    try:
        command = ["sacct", "--parsable2", "--noheader", "--allocations", "--format=State,ExitCode"]
        if how := parse_accounting(call([*command, f"--jobs={name}"])):
            return how
    except LauncherError:
        pass  # Slurm without accounting
    try:
        shown = call(["scontrol", "show", "job", name, "--oneliner"])
    except LauncherError:
        return ""
    fields = dict(word.partition("=")[::2] for word in shown.split())
    how = parse_accounting(f"{fields.get('JobState', '')}|{fields.get('ExitCode', '')}")
    reason = fields.get("Reason", "None")
    return f"{how} ({reason})" if how and reason not in ("None", "NonZeroExitCode") else how


def _tail(log: Path) -> str:
    """Return the last line of a log; "" if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            return last_line(file.read().decode(errors="replace"))
    except OSError:
        return ""


def _number_after(words: Sequence[str], long: str, short: str) -> int:
    """Return the value of an option that is a number; 0 if it is not there."""
    text = ""
    for place, word in enumerate(words):
        if word in (long, short):
            text = words[place + 1] if place + 1 < len(words) else ""
        elif word.startswith(f"{long}="):
            text = word.partition("=")[2]
        elif word.startswith(short) and not word.startswith("--"):
            text = word[2:]
    return int(text) if text.isascii() and text.isdecimal() else 0


def _worker_here() -> Path:
    """Return the `ciel-worker` of this installation."""
    beside = Path(sys.executable).with_name(WORKER)
    return beside if beside.exists() else Path(WORKER)
