"""Loads the executors of a host: the installed ones, and ones in the configuration.

The configuration file may also set options of installed executors.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from ciel import plugins
from ciel.access.settings import ExecutorSetting, executor_settings
from ciel.core.tasks import STRICT
from ciel.execution.executor import Executor

GROUP = "ciel.executors"
ANY_LANGUAGE = "language"
"""The entry point that creates executors which only the configuration names."""
REASON_MAX_LENGTH = 500


class Executors(NamedTuple):
    """The executors of a host, by name.

    `offered`: executors that this host can run. `lacking`: why the host cannot run the others.
    `known`: all executors that could be set up: tasks here can create tasks for them.
    """

    offered: dict[str, Executor]
    lacking: dict[str, str]
    known: dict[str, Executor]


def load_executors(environ: Mapping[str, str]) -> Executors:
    """Load every executor; raises SettingsError if the configuration file is not valid TOML."""
    settings = executor_settings(environ)
    found = Executors({}, {}, {})
    installed = plugins.names(GROUP)
    for name in sorted({*installed, *settings} - {ANY_LANGUAGE}):
        try:
            executor = found.known[name] = _make(name, settings.get(name), name in installed)
            why = executor.missing(environ)
        except plugins.PluginError as error:
            why = str(error)
        except Exception as error:  # executors of other projects may raise anything
            where = f" ({settings[name].origin})" if name in settings else ""
            why = f"it cannot be set up{where}: {error}"
        if why:
            found.lacking[name] = why[:REASON_MAX_LENGTH]
        else:
            found.offered[name] = executor
    return found


def _make(name: str, setting: ExecutorSetting | None, is_installed: bool) -> Executor:
    options: dict[str, Any] = {} if setting is None else dict(setting.options)
    make = plugins.load(GROUP, name if is_installed else ANY_LANGUAGE)
    takes = [key for key in inspect.signature(make).parameters if key != "name"]
    unknown = [key for key in options if key not in takes]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is unknown; the keys are: {', '.join(takes) or 'none'}")
    if not is_installed:
        options["name"] = name
        if "command" in takes and "command" not in options:
            raise ValueError(
                "no executor of this name is installed, so the configuration must define it: add "
                '\'command\', a list such as ["julia", "task.jl"]'
            )
    executor: Executor = make(**options)
    return executor


def offered_when(least: str, executors: Executors) -> Executors:
    """Remove the executors whose programs cannot run at a worker's least level of isolation."""
    if least != STRICT:
        return executors
    talking = {name for name, executor in executors.offered.items() if executor.talks}
    why = "its programs are interactive, and this worker isolates strictly (--isolate strict)"
    return executors._replace(
        offered={n: each for n, each in executors.offered.items() if n not in talking},
        lacking=executors.lacking | dict.fromkeys(talking, why),
    )
