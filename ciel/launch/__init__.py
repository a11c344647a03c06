"""Start programs without forking: a small C program does it for master, worker and client.

`Launcher` is that program's owner, `LaunchSpec` what it is asked for, the events what it answers.
"""

from ciel.launch.errors import (
    DescendantsRemainError,
    LauncherDiedError,
    LauncherMissingError,
    LaunchError,
    LaunchSpecError,
)
from ciel.launch.launcher import Launcher, become_subreaper
from ciel.launch.messages import (
    DEV_NULL,
    Descriptor,
    Event,
    File,
    LaunchSpec,
    Limits,
    ProgramExited,
    ProgramFailed,
    ProgramStarted,
    Stage,
    Standard,
)
from ciel.launch.refusals import why_refused

__all__ = [
    "DEV_NULL",
    "DescendantsRemainError",
    "Descriptor",
    "Event",
    "File",
    "LaunchError",
    "LaunchSpec",
    "LaunchSpecError",
    "Launcher",
    "LauncherDiedError",
    "LauncherMissingError",
    "Limits",
    "ProgramExited",
    "ProgramFailed",
    "ProgramStarted",
    "Stage",
    "Standard",
    "become_subreaper",
    "why_refused",
]
