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
_SYSTEM_HIDDEN = ("/home", "/root", "/run", "/media")
_SYSCTLS = (
    ("kernel.unprivileged_userns_clone", "0"),
    ("user.max_user_namespaces", "0"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1"),
)
_DOCKER = "docker://"
_INSTALLED_AS: Final = {
    STRICT: PROGRAM, PODMAN: PODMAN, APPTAINER: "apptainer or singularity",
}  # fmt: skip
_LISTING: Final = [
    PODMAN, "ps", "--all", "--filter=label=ciel.scratch",
    '--format={{.Names}} {{index .Labels "ciel.scratch"}}',
]  # fmt: skip


class Probes:
    """Tries each mechanism once, in child processes that run while the worker starts."""

    def __init__(self, group: str) -> None:
        """`group`: a file `cgroup.procs` of a group with a limit of processes; "": there is none.

        Root needs one: RLIMIT_NPROC does not apply to it.
        """
        self._lacking: dict[str, str] = {}
        self._running: dict[str, subprocess.Popen[str]] = {}
        if os.geteuid() == 0 and not group:
            self._lacking[STRICT] = (
                "root's processes can be limited only in a control group with the controller pids, "
                "and this worker can create none; run the worker as an ordinary user"
            )
        else:
            words = [f"g:{group}"] if group else []
            self._start(STRICT, [PROGRAM, "strict", *words, "--", "/bin/true"])
        self._start(PODMAN, _LISTING)
        self._start(APPTAINER, [_apptainer(), "--version"])

    def _start(self, name: str, command: list[str]) -> None:
        if shutil.which(command[0]) is None:
            self._lacking[name] = f"{_INSTALLED_AS[name]} is not installed"
            return
        try:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )  # fmt: skip
        except OSError as error:
            self._lacking[name] = f"{command[0]} cannot be run: {error}"

    def finish(self) -> tuple[dict[str, str], list[str]]:
        """Return what this host lacks, with the reasons, and the containers to remove."""
        left: list[str] = []
        for name, process in self._running.items():
            try:
                output, errors = process.communicate(timeout=_PROBE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                self._lacking[name] = f"a test of it did not end within {_PROBE_S:g} s"
                continue
            if process.returncode != 0:
                lines = errors.strip().splitlines() or [f"exit status {process.returncode}"]
                why = lines[-1].removeprefix(MESSAGE)
                self._lacking[name] = why + (_sysctl_text() if name == STRICT else "")
            elif name == PODMAN:
                left = _left(output)
        return self._lacking, left


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


def _left(listing: str) -> list[str]:
    """Return the containers of workers that were killed: their scratch directories are gone."""
    pairs = [line.partition(" ") for line in listing.splitlines()]
    return [name for name, _, scratch in pairs if not os.path.isdir(scratch)]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The directories that all sandboxes of one worker show or hide.

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
