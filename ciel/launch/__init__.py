"""Starts programs through a small C program, so that master, worker and client never fork.

`Launcher` owns a process of that program, `LaunchSpec` describes a launch, and events report it.
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
