"""The options of `ciel up --on`: which launcher brings the workers, how many, and for how long."""

from __future__ import annotations

import argparse
import json
import shlex
import socket
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ciel import plugins
from ciel.cli.launchers.autoscaler import CONFIG
from ciel.cli.outcome import UsageError
from ciel.cli.parsing.options import WORKERS_MAX
from ciel.cli.parsing.parser import Parser, seconds, whole_number
from ciel.launchers.interface import LauncherOptionError
from ciel.launchers.scaling import Limits

GROUP: Final = "ciel.launchers"
LAUNCHED_MAX: Final = 10_000
"""The highest number of workers that a launcher brings."""

_ONLY_LAUNCHED: Final = ("time", "idle", "backlog")


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line at its first `--`; the words behind it are for the launcher."""
    if "--" not in words:
        return list(words), []
    place = list(words).index("--")
    return list(words[:place]), list(words[place + 1 :])


def named_launcher(words: Sequence[str]) -> str | None:
    """Return the value of --on on a command line, before all options can be parsed."""
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word == "--on":
            return after
        if word.startswith("--on="):
            return word.removeprefix("--on=")
    return None


def worker_range(text: str) -> list[int]:
    """Read `N` or `N..M` (an argparse type); JSON keeps a list as it is."""
    first, dots, last = text.partition("..")
    read = whole_number(0, LAUNCHED_MAX)
    low = read(first)
    high = read(last) if dots else low
    if high < max(low, 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not N, or N..M with M from N on")
    return [low, high]


def add_launcher_options(parser: Parser, on: str | None) -> None:
    """Add the options for all launchers, and the options of the launcher `on`."""
    add = parser.add_argument
    known = ", ".join(plugins.names(GROUP))
    add(
        "--on", metavar="LAUNCHER",
        help=f"where the workers run, instead of this computer: {known}; then --workers is N..M, "
        "and workers come as tasks wait. Options after -- are for its programs, such as sbatch. "
        "`ciel up --on LAUNCHER --help` shows all options",
    )  # fmt: skip
    add(
        "--time", type=seconds, metavar="TIME", default=None,
        help="with --on: the time limit of each allocation, such as 2h",
    )  # fmt: skip
    add(
        "--idle", type=seconds, metavar="TIME", default=None,
        help="with --on: let a worker go that was idle for this time (default 60s)",
    )  # fmt: skip
    add(
        "--backlog", type=whole_number(1, 1000), metavar="N", default=None,
        help="with --on: at most N allocations are queued at a time (default 8)",
    )  # fmt: skip
    if on is not None:
        _load(on).add_options(parser)


def check_launcher(args: Namespace, words: Sequence[str]) -> None:
    """Check the options together, and complete --workers; raises UsageError."""
    if args.on is None:
        _check_local(args, words)
        return
    try:
        implied = _load(args.on).check(vars(args), words)
    except LauncherOptionError as error:
        raise UsageError(str(error)) from None
    if args.workers is None:
        if implied is None:
            raise UsageError(f"--on {args.on} needs --workers N..M, such as --workers 0..10")
        args.workers = list(implied)
    elif implied is not None and args.workers[1] > implied[1]:
        raise UsageError(
            f"--workers allows {args.workers[1]}, but the options of --on {args.on} have places "
            f"for {implied[1]}"
        )
    args.words = list(words)


def _check_local(args: Namespace, words: Sequence[str]) -> None:
    if words:
        raise UsageError("options after -- are for a launcher: ciel up --on slurm … -- OPTION…")
    for name in _ONLY_LAUNCHED:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} needs --on: it is about workers that a launcher brings")
    low, high = args.workers = args.workers or [1, 1]
    if low != high or not 1 <= high <= WORKERS_MAX:
        raise UsageError(
            f"--workers without --on is a number from 1 to {WORKERS_MAX}: only a launcher brings "
            "workers as tasks wait"
        )


def write_config(args: Namespace, directory: Path, switches: Sequence[str]) -> None:
    """Write the file that the autoscaler reads; `switches`: options of every worker."""
    low, high = args.workers
    given = {
        "backlog_max": max(low, args.backlog or Limits().backlog_max),
        "idle_s": Limits().idle_s if args.idle is None else args.idle,
    }
    limits = Limits(low, high, time_limit_s=args.time or 0.0, **given)
    options = {name: value for name, value in vars(args).items() if _is_plain(value)}
    config = {
        "on": args.on, "options": options, "words": args.words, "limits": limits._asdict(),
        "time_limit_s": limits.time_limit_s, "worker_options": _worker_options(args, switches),
    }  # fmt: skip
    (directory / CONFIG).write_text(json.dumps(config))


def _worker_options(args: Namespace, switches: Sequence[str]) -> list[str]:
    found = [*switches, "--verify", args.verify, "--kill-grace", f"{args.kill_grace:g}"]
    if args.slots:
        found += ["--slots", str(args.slots)]
    if args.store:
        found += ["--store", args.store]
    return found


def read_config(directory: Path) -> dict[str, Any] | None:
    """Return the configuration of the launcher of the cluster in a directory; None without one."""
    try:
        config: dict[str, Any] = json.loads((directory / CONFIG).read_text())
    except FileNotFoundError:
        return None
    return config


def own_address() -> str:
    """Return the address of this host towards other hosts, on its default route; sends nothing.

    Raises UsageError if there is none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # an address of documents, which no host has
            return str(sock.getsockname()[0])
        except OSError:
            raise UsageError(
                "this host has no route to other hosts: name the address by which workers reach "
                "it: --listen HOST:PORT"
            ) from None


def described(args: Namespace, directory: Path) -> str:
    """Describe the cluster for a message."""
    low, high = args.workers
    count = f"{low} to {high} workers" if low != high else f"{high} workers"
    words = f" with {shlex.join(args.words)}" if args.words else ""
    return f"{count} on {args.on}{words}; logs in {directory}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | list)


def _load(on: str) -> Any:
    try:
        return plugins.load(GROUP, on)
    except plugins.PluginError as error:
        raise UsageError(f"--on: {error}") from None
