"""The version of ciel, as it was built or installed: that of the tag, or the next one's."""

from __future__ import annotations

from importlib import import_module


def installed_version() -> str:
    """Return what the build has written down, or "0" if these are sources that nobody installed."""
    try:
        return str(import_module("ciel._version").__version__)
    except ModuleNotFoundError:
        return "0"


__version__ = installed_version()
