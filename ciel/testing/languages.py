"""What this machine has for programs in other languages; `.ci/packages` asks the same."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest


@cache
def _works(*argv: str) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, check=False, input=b"").returncode == 0
    except FileNotFoundError:
        return False


def require_jansson() -> None:
    """Skip a test if there is nothing to compile a task in C with."""
    if not _works("cc", "-E", "-include", "jansson.h", "-x", "c", "-"):
        pytest.skip("jansson.h is missing (Debian: libjansson-dev): 'make deps' installs it")


def require_perl() -> None:
    """Skip a test if a task in Perl cannot run."""
    if not _works("perl", "-MJSON::PP", "-e", "1"):
        pytest.skip("perl with JSON::PP is missing (Debian: perl): 'make deps' installs it")
