"""Isolates programs that are not trusted: probes what this host can do, and builds command lines.

`isolate.c` has the mechanisms of strict isolation. A container program (podman or apptainer) runs
images. This module starts no task; it only runs the probes, each once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ciel.launch.messages import LaunchSpec

PROGRAM: Final = str(Path(__file__).with_name("ciel-isolate"))
STRICT, PODMAN, APPTAINER = "strict", "podman", "apptainer"
NOT_STARTED: Final = 125
"""The exit status of `ciel-isolate`, and of podman, if the program was never executed."""
MESSAGE: Final = "ciel-isolate: "
PROCESSES_MAX: Final = 1024
"""Processes and threads of one strictly isolated task: more than a build or a JVM starts."""
_FIRST_DESCRIPTOR = 3
_PROBE_S = 20.0
_SYSTEM_HIDDEN = ("/home", "/root", "/run", "/var/run", "/media", "/mnt/wsl")
_SYSCTLS = (
    ("kernel.unprivileged_userns_clone", "0"),
    ("user.max_user_namespaces", "0"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1"),
)
_DOCKER = "docker://"


def lacking(group: str = "") -> dict[str, str]:
    """Return why this host lacks strict isolation and container programs, by their names.

    `group`: a file `cgroup.procs` of a control group with a limit of processes; root needs one.
    """
    found = {
        STRICT: why_not_strict(group),
        PODMAN: _why_not_runnable(PODMAN),
        APPTAINER: _why_not_runnable(_apptainer()),
    }
    return {name: why for name, why in found.items() if why}


def why_not_strict(group: str = "") -> str:
    """Try all mechanisms of strict isolation once; return what is missing, empty if nothing is."""
    if os.geteuid() == 0 and not group:
        return (
            "root's processes can be limited only in a control group with the controller pids, "
            "and this worker can create none; run the worker as an ordinary user"
        )
    command = [PROGRAM, "strict", "--", "/bin/true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{PROGRAM} cannot be run: {error}"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1].removeprefix(MESSAGE) + _sysctl_text()


def _sysctl_text(root: Path = Path("/proc/sys")) -> str:
    """Name the settings of this host that forbid user namespaces."""
    found = []
    for name, forbidding in _SYSCTLS:
        try:
            if (root / name.replace(".", "/")).read_text(encoding="ascii").strip() == forbidding:
                found.append(f"{name}={forbidding}")
        except OSError:
            continue
    return f" ({', '.join(found)})" if found else ""


def _apptainer() -> str:
    return APPTAINER if shutil.which(APPTAINER) else "singularity"


def _why_not_runnable(program: str) -> str:
    """Return why a container program cannot be run, and what to do."""
    if shutil.which(program) is None:
        name = f"{APPTAINER} or singularity" if program == "singularity" else program
        return f"{name} is not installed"
    command = [program, "info"] if program == PODMAN else [program, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run: {error}"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return "" if done.returncode == 0 else f"`{' '.join(command)}` failed: {lines[-1]}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What sandboxes of one worker have in common.

    `hidden`: directories that no program may see. `visible`: directories that programs may read,
    even below hidden ones. `secret`: files and directories that are hidden in any case.
    """

    hidden: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()

    @classmethod
    def of_worker(
        cls, environ: Mapping[str, str], spool: str, secret: Sequence[str]
    ) -> Surroundings:
        """`spool`: the work directory of the worker."""
        home = environ.get("HOME", "")
        hidden = [*_SYSTEM_HIDDEN, *([home] if home.count("/") > 1 else []), spool]
        return cls(tuple(hidden), (sys.prefix, str(Path(__file__).parents[1])), tuple(secret))

    def hides(self, path: str) -> bool:
        """Whether a path is below a hidden directory, or below one that is private."""
        private = ("/tmp", "/var/tmp", "/dev")
        return any(f"{path}/".startswith(f"{each}/") for each in (*self.hidden, *private))


@dataclass(slots=True)
class Sandbox:
    """The isolation of one program: `path` names its files, then `wrap` changes its launch.

    `scratch`: its private directory. `inputs`: the directory with inputs that were written for it,
    or empty. `image` and `container`: the image, and the program that runs it; empty if there is
    none. `name`: names the container. `group`: the file `cgroup.procs` of its control group.
    """

    surroundings: Surroundings
    is_strict: bool
    scratch: str
    image: str = ""
    container: str = ""
    name: str = ""
    group: str = ""
    _opened: list[str] = field(default_factory=list)

    def path(self, path: str, *, writable: bool = False) -> str:
        """Return the path by which the program reaches a file that this worker can open now.

        The sandbox has other namespaces than the worker. So its first process opens the file, and
        the program opens the descriptor of that process.
        """
        if path.startswith(self.scratch.rstrip("/")):
            return path
        self._opened.append(f"{'w' if writable else 'r'}:{path}")
        return f"/proc/1/fd/{_FIRST_DESCRIPTOR + len(self._opened) - 1}"

    def wrap(self, spec: LaunchSpec, inputs: str = "") -> LaunchSpec:
        """Return the launch of the program in its sandbox."""
        argv = [os.fsdecode(word) for word in spec.argv]
        cwd = os.fsdecode(spec.cwd).rstrip("/") or "/"
        words = [*([f"g:{self.group}"] if self.group else []), *self._opened]
        if self.image:
            argv = self._container_argv(spec, argv, cwd, inputs)
            mode = "open"
        else:
            words += self._strict_words(argv[0], cwd, inputs)
            mode = "strict"
        # The sandbox may lack the directory of the worker's user; ciel-isolate changes to `cwd`.
        return replace(spec, argv=[PROGRAM, mode, *words, "--", *argv], no_new_privileges=False)

    def _strict_words(self, program: str, cwd: str, inputs: str) -> list[str]:
        around, scratch = self.surroundings, self.scratch.rstrip("/")
        if "/" in program and not os.path.isabs(program):
            program = os.path.join(cwd, program)
        shown = [*around.visible, cwd, *([program] if "/" in program else [])]
        return [
            *([] if os.geteuid() == 0 else [f"n:{PROCESSES_MAX}"]),
            f"d:{cwd}",
            *[f"-:{path}" for path in around.hidden],
            *[f"=:{path}" for path in shown if around.hides(path) and os.path.exists(path)],
            *[f"-:{path}" for path in around.secret],
            f"+:{scratch}",
            *([f"=:{inputs}"] if inputs else []),
        ]

    def _container_argv(
        self, spec: LaunchSpec, argv: list[str], cwd: str, inputs: str
    ) -> list[str]:
        scratch = self.scratch.rstrip("/")
        binds = [f"{scratch}:{scratch}"]
        if cwd != scratch:
            binds.append(f"{cwd}:{cwd}{':ro' if self.is_strict else ''}")
        if inputs:
            binds.append(f"{inputs}:{inputs}:ro")
        env = {n: v for n, v in spec.env.items() if v is not None and n not in ("PATH", "HOME")}
        if self.container == APPTAINER:
            return apptainer_argv(self.image, argv, cwd, binds, [*env], is_strict=self.is_strict)
        image = self.image.removeprefix(_DOCKER)
        return [
            PODMAN, "run", "--rm", "--interactive", f"--name={self.name}",
            f"--label=ciel.scratch={scratch}",
            f"--pull={'missing' if image != self.image else 'never'}",
            f"--preserve-fds={len(self._opened)}", "--security-opt=no-new-privileges",
            *(_PODMAN_STRICT if self.is_strict else ["--network=host"]),
            *[f"--volume={bind}" for bind in binds], f"--workdir={cwd}",
            *[f"--env={name}" for name in env], f"--entrypoint={argv[0]}", image, *argv[1:],
        ]  # fmt: skip


_PODMAN_STRICT: Final = (
    "--network=none", "--cap-drop=all", "--read-only", f"--pids-limit={PROCESSES_MAX}",
)  # fmt: skip


def apptainer_argv(
    image: str, argv: Sequence[str], cwd: str, binds: Sequence[str], env: Sequence[str], *,
    is_strict: bool,
) -> list[str]:  # fmt: skip
    """Return the command line that runs a program in an image file by apptainer or singularity.

    Its processes share the PID namespace of the worker, unless strict, and the environment.
    """
    strict = ["--containall", "--no-home", "--net", "--network=none", "--no-privs"]
    return [
        _apptainer(), "exec", *(strict if is_strict else ["--no-home"]), f"--pwd={cwd}",
        *[f"--bind={bind}" for bind in binds], image, *argv,
    ]  # fmt: skip


def remove_container(name: str) -> None:
    """End and remove a container of podman, if it still exists. Takes a tenth of a second."""
    command = [PODMAN, "rm", "--force", "--ignore", "--time=0", name]
    subprocess.run(command, capture_output=True, timeout=_PROBE_S, check=False)


def remove_left_containers() -> None:
    """Remove the containers of workers that were killed: their scratch directories are gone."""
    template = '{{.Names}} {{index .Labels "ciel.scratch"}}'
    command = [PODMAN, "ps", "--all", "--filter=label=ciel.scratch", f"--format={template}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    for line in done.stdout.splitlines():
        name, _, scratch = line.partition(" ")
        if not os.path.isdir(scratch):
            remove_container(name)
