"""Paths of state and configuration files.

`$XDG_STATE_HOME/ciel` contains one directory for each master's address. Several hosts may share a
home directory. So three file names include the host's name: the link to the cluster of `ciel up`,
the lock of `ciel up`, and the directory of a master that listens only on loopback.

As everywhere in this package, functions take the environment variables as an argument.
"""

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ciel.access.errors import AccessFileError

ACCESS_FILE_NAME: Final = "access.json"
_CURRENT_NAME = "current"
_UP_LOCK_NAME = "up"
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_STATE_HOME/ciel`, the directory of access files and logs."""
    return _xdg_directory(environ, "XDG_STATE_HOME", ".local/state") / "ciel"


def config_directory(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CONFIG_HOME/ciel`, the directory of the configuration file."""
    return _xdg_directory(environ, "XDG_CONFIG_HOME", ".config") / "ciel"


def normalise_host(host: str) -> str:
    """Return `host` as file names spell it; all loopback names become `localhost`."""
    name = host.strip("[]").rstrip(".").lower()
    return "localhost" if name in _LOOPBACK_NAMES else name


def access_path(environ: Mapping[str, str], host: str, port: int) -> Path:
    """Return the path of the access file of the master at `host` and `port`."""
    name = normalise_host(host)
    directory = f"{name}@{host_name()}_{port}" if name in _LOOPBACK_NAMES else f"{name}_{port}"
    path = state_directory(environ) / directory / ACCESS_FILE_NAME
    if not re.fullmatch(r"[a-z0-9:][a-z0-9.:%_@-]*", directory):
        raise AccessFileError(path, f"{host!a} is not a host name")
    return path


def host_name() -> str:
    """Return this host's name as file names spell it."""
    return re.sub(r"[^a-z0-9.-]", "-", os.uname().nodename.lower()) or "unnamed"


def current_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the link to the access file of `ciel up` on this host."""
    return state_directory(environ) / f"{_CURRENT_NAME}@{host_name()}"


def up_lock_path(environ: Mapping[str, str]) -> Path:
    """Return the file that `ciel up` on this host locks while it searches or starts a cluster."""
    return state_directory(environ) / f"{_UP_LOCK_NAME}@{host_name()}.lock"


def point_current(environ: Mapping[str, str], path: Path) -> None:
    """Make the link to the current cluster point to the access file `path`, atomically."""
    link = current_path(environ)
    temporary = link.with_name(f".{_CURRENT_NAME}.{secrets.token_hex(8)}")
    temporary.symlink_to(path)
    temporary.replace(link)


def drop_current(environ: Mapping[str, str], path: Path) -> None:
    """Remove the current link if it still points to `path`."""
    link = current_path(environ)
    if link.is_symlink() and link.readlink() == path:
        link.unlink(missing_ok=True)


def _xdg_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    configured = Path(environ.get(variable, ""))
    # The XDG base directory specification says to ignore relative paths.
    return configured if configured.is_absolute() else Path(environ.get("HOME") or "/") / default
