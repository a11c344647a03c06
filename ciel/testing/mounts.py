"""Small and odd file systems for a test, mounted where nobody else sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest


@cache
def _private_mounts() -> list[str] | None:
    """Return the command that gives a mount namespace: as root, else by a user namespace."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        try:
            subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/tmp"], check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    return None


def run_on_mount(mount: list[str], scenario: Path, place: Path, *, timeout_s: float = 60) -> int:
    """Mount something at a place, run a script there, and return how it ended.

    `mount` are the arguments of mount(8) before the place. A death by signal n is 128 + n or -n.
    """
    command = _private_mounts()
    if command is None:
        pytest.skip("no mount namespaces here")
    shell = 'mount "$@" && exec "$python" "$scenario" "$place"'
    variables = {"python": sys.executable, "scenario": str(scenario), "place": str(place)}
    ended = subprocess.run(
        [*command, "sh", "-c", shell, "sh", *mount, str(place)],
        env={**os.environ, **variables},
        timeout=timeout_s,
        check=False,
    )
    return ended.returncode
