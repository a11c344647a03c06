"""What may go wrong on our side of the launcher; what goes wrong with a program is an event."""

from pathlib import Path


class LaunchError(Exception):
    """Root of this room's errors."""


class LaunchSpecError(LaunchError):
    """The caller's fault: no program can be started like this. Nothing was sent."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} {reason}")
        self.what = what
        self.reason = reason


class LauncherMissingError(LaunchError):
    """The C program was not built, or not beside this package."""

    def __init__(self, program: Path) -> None:
        super().__init__(f"{program} is missing: `make dev` builds it")
        self.program = program


class LauncherDiedError(LaunchError):
    """The launcher is gone, and with it every program; see `Launcher.kill_descendants`."""

    def __init__(self, pid: int, reason: str) -> None:
        super().__init__(f"the launcher (process {pid}) died: {reason}")
        self.pid = pid
        self.reason = reason


class DescendantsRemainError(LaunchError):
    """Some processes survive SIGKILL (a device or file system hangs, or they are not ours)."""

    def __init__(self, pids: list[int], timeout_s: float) -> None:
        super().__init__(f"still alive {timeout_s:g} s after SIGKILL: processes {pids}")
        self.pids = pids
        self.timeout_s = timeout_s
