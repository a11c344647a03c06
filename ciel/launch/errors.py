"""The errors of the launcher's owner. Failures of programs are events, not exceptions."""

from pathlib import Path


class LaunchError(Exception):
    """Root of the errors of `ciel.launch`."""


class LaunchSpecError(LaunchError):
    """The caller's `LaunchSpec` is invalid. Nothing was sent."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} {reason}")
        self.what = what
        self.reason = reason


class LauncherMissingError(LaunchError):
    """The C program was not built, or is not in this package's directory."""

    def __init__(self, program: Path) -> None:
        super().__init__(f"the launcher {program} is missing; build it with `make dev`")
        self.program = program


class LauncherDiedError(LaunchError):
    """The launcher has died, and its programs with it; see `Launcher.kill_descendants`."""

    def __init__(self, pid: int, reason: str) -> None:
        super().__init__(f"the launcher (process {pid}) died: {reason}")
        self.pid = pid
        self.reason = reason


class DescendantsRemainError(LaunchError):
    """Some processes survive SIGKILL: a device or file system hangs, or another user owns them."""

    def __init__(self, pids: list[int], timeout_s: float) -> None:
        numbers = ", ".join(map(str, pids))
        super().__init__(
            f"these processes are still alive {timeout_s:g} s after SIGKILL: {numbers}; they wait "
            "for a device or file system that hangs, or belong to another user"
        )
        self.pids = pids
        self.timeout_s = timeout_s
