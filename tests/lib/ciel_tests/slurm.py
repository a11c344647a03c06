"""A small Slurm on this computer: munged, slurmctld and slurmd in a directory of a test."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ciel.testing.homes import wait_for

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_START_S = 30.0


def why_no_slurm() -> str:
    """Return why Slurm cannot be started here; "" if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PLACES) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "needs root: slurmd starts jobs as their users"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Slurm:
    """A controller and one node with `cpus` CPUs, which several jobs share.

    `environ` names this Slurm to its commands.
    """

    def __init__(self, directory: Path, cpus: int = 2) -> None:
        self.directory = directory
        self._undo = ExitStack()
        self.environ = {
            "SLURM_CONF": str(directory / "slurm.conf"),
            "PATH": _PLACES,
            "SLURM_TIME_FORMAT": "standard",
        }
        try:
            self._start_munged()
            self._start_slurm(cpus)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all daemons and jobs."""
        self._undo.close()

    def run(self, *command: str) -> str:
        """Run a command of Slurm, and return its output."""
        environ = os.environ | self.environ
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def jobs(self) -> list[str]:
        """List the jobs that are queued or running, each with its state."""
        return self.run("squeue", "--noheader", "--array", "-o", "%i %T").splitlines()

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"{name}.out"
        environ = os.environ | self.environ
        with log.open("wb") as out:
            process = subprocess.Popen(
                [shutil.which(name, path=_PLACES) or name, *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ,
                start_new_session=True,
            )  # fmt: skip
        self._undo.callback(_end, process)
        return process

    def _start_munged(self) -> None:
        place = self.directory / "munge"
        place.mkdir(mode=0o755)
        key = place / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._socket = place / "socket"
        self._spawn(
            "munged", "--foreground", "--force", f"--socket={self._socket}", f"--key-file={key}",
            f"--pid-file={place}/munged.pid", f"--log-file={place}/munged.log",
            f"--seed-file={place}/munged.seed",
        )  # fmt: skip
        wait_for(self._socket.exists, "munged", _START_S)

    def _start_slurm(self, cpus: int) -> None:
        host = socket.gethostname().partition(".")[0]
        state, spool = self.directory / "state", self.directory / "spool"
        state.mkdir()
        spool.mkdir()
        (self.directory / "slurm.conf").write_text(
            f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self._socket}
CredType=cred/munge
StateSaveLocation={state}
SlurmdSpoolDir={spool}
SlurmctldPidFile={self.directory}/slurmctld.pid
SlurmdPidFile={self.directory}/slurmd.pid
SlurmctldLogFile={self.directory}/slurmctld.log
SlurmdLogFile={self.directory}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
MailProg=/bin/true
ReturnToService=2
KillWait=10
DefMemPerCPU=256
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=2048 State=UNKNOWN
PartitionName=cpu Nodes={host} Default=YES MaxTime=60 State=UP
PartitionName=down Nodes={host} MaxTime=60 State=DOWN
"""
        )
        self._spawn("slurmctld", "-D")
        self._spawn("slurmd", "-D", "-N", host)
        wait_for(self._is_idle, "slurmd", _START_S)

    def _is_idle(self) -> bool:
        done: subprocess.CompletedProcess[Any] = subprocess.run(
            ["sinfo", "--noheader", "-p", "cpu", "-o", "%T"], env=os.environ | self.environ,
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        return done.returncode == 0 and done.stdout.strip() in ("idle", "mixed", "allocated")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
