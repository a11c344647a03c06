"""`ciel config`: shows the settings, and where each is set.

A setting comes from a flag, the environment or the configuration file, or has its default.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ciel.access.errors import AccessError
from ciel.access.paths import state_directory
from ciel.access.settings import NAMES, Settings, config_path, executor_settings, find_master
from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.output.tables import screen_width, table
from ciel.cli.parsing.options import add_cluster_options, make_parser
from ciel.cli.parsing.verbs import show_verbs
from ciel.storage.specs import DEFAULT, VARIABLE

VARIABLES: Final = {"store": VARIABLE, "log_level": "CIEL_LOG_LEVEL"}
"""Settings that only the environment sets."""

_DEFAULTS: Final = {"store": DEFAULT, "log_level": "info"}
_EPILOG = """\
A flag takes precedence over the environment, and the environment over the configuration file. If
neither master nor access is set, commands use the cluster of `ciel up`, or start their own.
"""


class Shown(NamedTuple):
    """A setting: its value (None if it has none), and where it is set."""

    value: Any
    origin: str


def main(prog: str, words: Sequence[str]) -> int:
    """Run the subcommand."""
    if words[:1] != ["show"]:
        return show_verbs("ciel config", "Shows the settings, and where each is set.", VERBS, words)
    parser = make_parser("ciel config show", f"{VERBS['show'].capitalize()}.", _EPILOG)
    parser.add_argument("--origin", action="store_true", help="show also where each is set")
    add_cluster_options(parser)
    args = parser.parse_args(words[1:])
    shown = settings_of(args, os.environ)
    if args.json:
        settings = {
            name: one._asdict() if args.origin else one.value for name, one in shown.items()
        }
        print_json(settings)
        return Status.DONE
    rows = [(name, _text(one.value), one.origin)[: 2 + args.origin] for name, one in shown.items()]
    print_text(table(("SETTING", "VALUE", "FROM")[: 2 + args.origin], rows, screen_width()))
    return Status.DONE


def settings_of(args: Namespace, environ: Mapping[str, str]) -> dict[str, Shown]:
    """Return every setting; raises SettingsError."""
    found = dict(Settings({"master": args.master, "access": args.access}, environ))
    shown = {
        name: Shown(found[name].value, found[name].origin) if name in found else _UNSET
        for name in NAMES
    }
    for name, variable in VARIABLES.items():
        set_here = environ.get(variable)
        shown[name] = Shown(set_here, variable) if set_here else Shown(_DEFAULTS[name], "default")
    for name, setting in sorted(executor_settings(environ).items()):
        shown[f"executors.{name}"] = Shown(dict(setting.options), setting.origin)
    path, named = config_path(environ)
    shown["config"] = _place(path, "CIEL_CONFIG" if named else _xdg("CONFIG", environ))
    shown["state"] = _place(state_directory(environ), _xdg("STATE", environ))
    shown["cluster"] = _cluster(args, environ)
    return shown


def _cluster(args: Namespace, environ: Mapping[str, str]) -> Shown:
    """Return the cluster that the settings select, or the reason why it cannot be used."""
    try:
        meant = find_master(args.master, args.access, environ)
    except AccessError as error:
        return Shown(None, str(error))
    return (
        Shown(None, "no cluster is configured or running")
        if meant is None
        else Shown(meant.url, meant.origin)
    )


_UNSET: Final = Shown(None, "not set")


def _place(path: Path, origin: str) -> Shown:
    return Shown(str(path), origin if path.exists() else f"{origin}; the file does not exist")


def _xdg(kind: str, environ: Mapping[str, str]) -> str:
    """Return what determines the path of a directory: a variable, or the default."""
    variable = f"XDG_{kind}_HOME"
    return variable if Path(environ.get(variable, "")).is_absolute() else "default"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={item!r}" for name, item in value.items()) or "-"
    return "-" if value is None else str(value)


VERBS = {"show": "show every setting"}
