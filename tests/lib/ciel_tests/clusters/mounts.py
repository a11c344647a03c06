"""Mounts small or special file systems for one test, in a mount namespace."""

from __future__ import annotations

import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


@cache
def _private_mounts() -> list[str] | None:
    """Return the command that makes a mount namespace, if possible without a user namespace."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        try:
            subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/tmp"], check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return None


def on_mount(mount: list[str], place: Path, argv: list[str]) -> list[str]:
    """Return the command line that mounts something at `place` and runs `argv`, which alone sees
    the mount. `mount`: the arguments of mount(8) before the place.
    """
    namespace = _private_mounts()
    if namespace is None:
        pytest.skip("no mount namespaces here")
    shell = f'mount {shlex.join([*mount, str(place)])} && exec "$@"'
    return [*namespace, "sh", "-c", shell, "sh", *argv]


def run_on_mount(mount: list[str], scenario: Path, place: Path, *, timeout_s: float = 60) -> int:
    """Mount something at `place`, run a script there, and return its exit status; after signal n
    that is 128 + n or -n.
    """
    command = on_mount(mount, place, [sys.executable, str(scenario), str(place)])
    return subprocess.run(command, timeout=timeout_s, check=False).returncode
