"""The version of ciel as built or installed: from the tag of its commit, or the next version."""

from __future__ import annotations

from importlib import import_module


def installed_version() -> str:
    """Return what the build has written down, or "0" if these are sources that nobody installed."""
    try:
        return str(import_module("ciel._version").__version__)
    except ModuleNotFoundError:
        return "0"


__version__ = installed_version()
