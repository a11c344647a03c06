"""Reads settings from flags, then the environment, then the configuration file.

The environment is an argument; only the entry points of programs read `os.environ`. `find_master`
uses one more source, the access file of `ciel up`, as the last one. It also returns the key.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ciel.access import access_file
from ciel.access.access_file import AccessFile
from ciel.access.addresses import is_loopback, netloc, parse_url
from ciel.access.errors import (
    AccessDeniedError,
    AccessFileMissingError,
    SettingsError,
    UnsafeListenError,
)
from ciel.access.keys import Key
from ciel.access.paths import access_path, config_directory, current_path, normalise_host

NAMES: Final = ("master", "access")
"""All settings: each is a flag `--NAME`, a variable `CIEL_NAME` and a key `NAME` in the file."""
EXECUTORS: Final = "executors"
"""The table of the file that contains one table for each executor to configure or define."""


_KEY: Final = r"""([\w-]+)|("[^"]*"|'[^']*')"""
_SETTING_LINE: Final = rf"\s*(?P<bracket>\[?)\s*(?P<keys>(?:{_KEY})(?:\s*\.\s*(?:{_KEY}))*)\s*[]=]"
"""Matches a line that starts a table or sets a key; compiled only if there is a file."""


class Setting(NamedTuple):
    """A value and its origin; `rank` is 0 for a flag, 1 for the environment, 2 for a file."""

    value: str
    origin: str
    rank: int


class ExecutorSetting(NamedTuple):
    """The configuration of one executor, and its file and line."""

    options: Mapping[str, Any]
    origin: str


class MasterLocation(NamedTuple):
    """A master's address and key. `origin` names the setting or file that contains them.

    `pid` and `pid_start` come from the access file: the process of the master or, for `ciel up`,
    the process that restarts it. `standbys`: the URLs of masters that may have taken over.
    """

    url: str
    control: str
    cluster_id: str
    key: Key
    origin: str
    pid: int = 0
    pid_start: int = 0
    standbys: tuple[str, ...] = ()

    def is_alive(self) -> bool:
        """Whether that process runs on this host, so that the master will serve again soon."""
        return self.pid > 0 and access_file.process_start(self.pid) == self.pid_start


class Settings:
    """All settings of one command. The constructor raises `SettingsError` for an invalid file."""

    def __init__(self, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> None:
        self._found: dict[str, Setting] = {}
        path, required = config_path(environ)
        self._found.update(_read_config(path, required))
        for name in NAMES:
            variable = f"CIEL_{name.upper()}"
            if value := environ.get(variable):
                self._found[name] = Setting(value, variable, 1)
            if flag := flags.get(name):
                self._found[name] = Setting(flag, f"--{name}", 0)

    def get(self, name: str) -> Setting | None:
        return self._found.get(name)

    def __iter__(self) -> Iterator[tuple[str, Setting]]:
        return iter(sorted(self._found.items()))


def config_path(environ: Mapping[str, str]) -> tuple[Path, bool]:
    """Return the configuration file, and whether it must exist: only if `CIEL_CONFIG` names it."""
    if named := environ.get("CIEL_CONFIG"):
        return Path(named), True
    return config_directory(environ) / "config.toml", False


def executor_settings(environ: Mapping[str, str]) -> dict[str, ExecutorSetting]:
    """Return the configuration of executors by name; raises `SettingsError`."""
    path, required = config_path(environ)
    text, found = _parse_config(path, required)
    return _executor_tables(path, text, found.get(EXECUTORS, {}))


def find_master(
    flag_master: str | None, flag_access: str | None, environ: Mapping[str, str]
) -> MasterLocation | None:
    """Return the master for this command; None if no setting names one and `ciel up` runs none.

    The key comes from the access file that the settings name, or else from the access file of the
    address. If the setting `access` comes from a more direct source than the setting `master`, or
    `master` is missing, the address in the access file is used. Raises `AccessDeniedError` if no
    key is found, `AccessFileError` if a file cannot be trusted, and `SettingsError` if a setting is
    invalid.
    """
    settings = Settings({"master": flag_master, "access": flag_access}, environ)
    master, access = settings.get("master"), settings.get("access")
    if access is not None and (master is None or access.rank < master.rank):
        return location_of(_read_named(access), f"{access.origin} ({access.value})")
    if master is not None:
        return _locate_address(master, access, environ)
    current = current_path(environ)
    try:
        found = access_file.read(current)
    except AccessFileMissingError:
        return None
    return location_of(found, f"ciel up ({current})") if found.is_alive() else None


def parse_address(text: str, origin: str) -> tuple[str, str, int]:
    """Split `[http[s]://]HOST[:PORT]` into URL, host and port. Raise `SettingsError` otherwise."""
    try:
        return parse_url(text)
    except ValueError:
        reason = f"{text[:80]!a} is not a master address: expected http://HOST:PORT"
        raise SettingsError(origin, reason) from None


def require_safe_listen(host: str, *, has_key: bool, new_key: bool) -> None:
    """Raise `UnsafeListenError` if `host` is not loopback, and its master has no key yet.

    With `new_key` the user has asked for a new key, so that is no error.
    """
    if not (has_key or new_key or is_loopback(host)):
        raise UnsafeListenError(host)


def _locate_address(
    master: Setting, access: Setting | None, environ: Mapping[str, str]
) -> MasterLocation:
    url, host, port = parse_address(master.value, master.origin)
    if access is not None:
        found = _read_named(access)
    else:
        path = access_path(environ, host, port)
        try:
            found = access_file.read(path)
        except AccessFileMissingError:
            raise AccessDeniedError(
                f"no key for {url} ({master.origin}): there is no {path}, "
                "and neither --access nor CIEL_ACCESS names a file"
            ) from None
    own = parse_address(found.url, "access file")
    # The file's control address may be a socket on this host; it is valid only for the file's URL.
    same = (normalise_host(own[1]), own[2]) == (normalise_host(host), port)
    control = found.control if same else netloc(host, port)
    location = location_of(found._replace(url=url, control=control), master.origin)
    return location if same else location._replace(pid=0)  # that process restarts another master


def location_of(found: AccessFile, origin: str) -> MasterLocation:
    """Return the location of the master that has written an access file."""
    return MasterLocation(
        found.url, found.control, found.cluster_id, found.key, origin, found.pid, found.pid_start,
        found.standbys,
    )  # fmt: skip


def _read_named(access: Setting) -> AccessFile:
    try:
        return access_file.read(Path(access.value))
    except AccessFileMissingError as error:
        raise AccessDeniedError(f"{access.origin} names {error.path}: no such file") from None


def _parse_config(path: Path, required: bool) -> tuple[str, dict[str, Any]]:
    """Return the text and the content of the file; both are empty if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise SettingsError("CIEL_CONFIG", f"{path}: no such file") from None
        return "", {}
    except (OSError, ValueError) as error:  # invalid UTF-8 raises a ValueError
        raise SettingsError(str(path), str(error)) from None
    import tomllib  # takes 5 ms, and most users have no such file

    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(str(path), str(error)) from None


def _executor_tables(path: Path, text: str, tables: Any) -> dict[str, ExecutorSetting]:
    what = f"{EXECUTORS} must be tables: [{EXECUTORS}.NAME], then one setting on each line"
    if not isinstance(tables, dict):
        raise SettingsError(f"{path} line {_line_of(text, EXECUTORS)}", what)
    settings = {}
    for name, options in tables.items():
        origin = f"{path} line {_line_of(text, EXECUTORS, name)}"
        if not isinstance(options, dict):
            raise SettingsError(origin, what)
        settings[name] = ExecutorSetting(options, origin)
    return settings


def _read_config(path: Path, required: bool) -> dict[str, Setting]:
    text, found = _parse_config(path, required)
    settings = {}
    for name, value in found.items():
        if name == EXECUTORS:
            _executor_tables(path, text, value)  # checks the shape; only workers read the content
            continue
        origin = f"{path} line {_line_of(text, name)}"
        if name not in NAMES:
            raise SettingsError(origin, f"unknown setting {name!a}; known: {', '.join(NAMES)}")
        if not isinstance(value, str) or not value:
            raise SettingsError(origin, f"{name} must be a text")
        if name == "access":
            value = str(path.parent / value)  # relative to the configuration file's directory
        settings[name] = Setting(value, origin, 2)
    return settings


def _line_of(text: str, *keys: str) -> int:
    """Return the first line that sets the path `keys` or a prefix of it: tomllib reports no lines.

    Return 1 if a key is written with escapes.
    """
    table: tuple[str, ...] = ()
    whole = 1
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(_SETTING_LINE, line)
        if match is None:
            continue
        named = tuple([bare or quoted[1:-1] for bare, quoted in re.findall(_KEY, match["keys"])])
        if match["bracket"]:
            table = path = named
        else:
            path = (*table, *named)
            if path == keys[: len(path)]:
                whole = number
        if path[: len(keys)] == keys:
            return number
    return whole
