"""Parses store specifications such as `shm:capacity=8GiB`, and describes kinds of stores.

The name before the colon is an entry point in the group `ciel.stores`: a `StoreKind`, or a function
that opens a store and has no more to say. No other code knows stores by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ciel import plugins
from ciel.storage.errors import StoreSpecError

if TYPE_CHECKING:
    from ciel.storage.interface import MessageCore, ObjectStore

GROUP: Final = "ciel.stores"
DEFAULT: Final = "disk"
"""The specification of the store of a worker without another one."""
VARIABLE: Final = "CIEL_STORE"
"""The environment variable that sets another default."""
CLEANED_PREFIX: Final = "ciel-"
"""The names of all directories that a cluster removes at its end start with this."""

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_INSTANCE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHARE_MIN_BYTES = 1 << 20
_SIZE = re.compile(r"([0-9]{1,15})(?:B|([KMGT])(?:iB)?)?")
_UNIT_BYTES = {None: 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_spec(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:option=value,option=value` into the name and its options."""
    name, _, rest = text.partition(":")
    if not _NAME.fullmatch(name) or "\n" in text:
        raise StoreSpecError(text, "write NAME or NAME:OPTION=VALUE,OPTION=VALUE in one line")
    options: dict[str, str] = {}
    for item in rest.split(",") if rest else []:
        option, equals, value = item.partition("=")
        if not (_NAME.fullmatch(option) and equals and value):
            raise StoreSpecError(text, f"{item!r} is not option=value")
        if option in options:
            raise StoreSpecError(text, f"option {option!r} is given twice")
        options[option] = value
    return name, options


def check_options(store: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raise `StoreSpecError` for an unknown option, and list the known ones in the message."""
    for option in options:
        if option not in known:
            reason = f"unknown option {option!r}; the options are: {', '.join(known)}"
            raise StoreSpecError(store, reason)


def parse_size(text: str) -> int:
    """Parse a size like `8GiB`, `8G`, `512MiB` or `1000000`.

    Units are powers of 1024; zero is refused.
    """
    match = _SIZE.fullmatch(text)
    size_bytes = int(match[1]) * _UNIT_BYTES[match[2]] if match else 0
    if not size_bytes:
        raise StoreSpecError(text, "not a size; write a size such as 8GiB, 512MiB or 1000000")
    return size_bytes


def parse_flag(text: str) -> bool:
    """Parse `yes` or `no`."""
    if text not in ("yes", "no"):
        raise StoreSpecError(text, "write yes or no")
    return text == "yes"


def check_instance(instance: str) -> str:
    """Return the name of an instance of a store, or raise `StoreSpecError`."""
    if not _INSTANCE.fullmatch(instance):
        raise StoreSpecError(instance, "an instance is 1 to 64 letters, digits, _ and -")
    return instance


def share_bytes(directory: str, workers: int) -> int:
    """Return a capacity for each of the workers of a host: half of the free space, divided."""
    try:
        device = os.statvfs(directory)
    except OSError:
        return _SHARE_MIN_BYTES  # the worker reports the error
    return max(device.f_bavail * device.f_frsize // 2 // max(workers, 1), _SHARE_MIN_BYTES)


# --- kinds of stores ------------------------------------------------------------------------------


class Left(NamedTuple):
    """A directory that a worker's store may leave behind when its process is killed.

    A cluster removes it at its end. The last part of the path starts with `ciel-`. A `*` at the end
    stands for the rest of that part. `is_leased`: other clusters may use the directory, so it is
    removed only if no process holds its lease (`ciel.storage.leases`). Otherwise the path contains
    the worker's name in `names`. It may lie below a mount point `/dev/shm/ciel-*`; the last cluster
    that uses the mount point removes it.
    """

    path: str
    is_leased: bool = False


class WorkerOptions:
    """The stores of a cluster's workers on one host: all workers get the given options.

    This suits a store that keeps everything in the work directory of its worker. Workers have
    numbers from 0. `names` has a random name for each worker, which no other cluster uses.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = dict(given)

    def of(self, number: int, names: Sequence[str]) -> Mapping[str, str]:
        """Return the options of a worker's store."""
        return self.given

    def refusal(self, number: int) -> str:
        """Return why the cluster cannot have a worker of this number; empty if it can."""
        return ""

    def left(self, number: int, names: Sequence[str]) -> Iterator[Left]:
        """Yield the directories outside of its work directory that a worker's store may leave."""
        yield from ()


class OwnInstances(WorkerOptions):
    """The stores of workers that each have an instance of their own, by the option `instance`.

    `directories` returns the directories of an instance. `usual`: options that apply unless they
    are given. If `instance` is given, the first worker gets that name, and the next ones get it
    with a number.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        directories: Callable[[str], Sequence[Path]],
        usual: Mapping[str, str],
    ) -> None:
        super().__init__(given)
        self._directories = directories
        self._usual = dict(usual)

    def of(self, number: int, names: Sequence[str]) -> Mapping[str, str]:
        return self._usual | self.given | {"instance": self._instance(number, names)}

    def left(self, number: int, names: Sequence[str]) -> Iterator[Left]:
        is_leased = "instance" in self.given
        for path in self._directories(self._instance(number, names)):
            yield Left(str(path), is_leased)

    def _instance(self, number: int, names: Sequence[str]) -> str:
        given = self.given.get("instance", names[number])
        return f"{given}-{number + 1}" if "instance" in self.given and number else given


class StoreKind:
    """Opens stores, and describes them before one is open. Other kinds override its methods.

    Calling it opens a store with these options; `directory` is for the files that the store keeps
    in the work directory of its worker.
    """

    def __init__(self, open_store: Callable[[Mapping[str, str], Path], ObjectStore]) -> None:
        self._open_store = open_store

    def __call__(self, options: Mapping[str, str], directory: Path) -> ObjectStore:
        return self._open_store(options, directory)

    def check(self, options: Mapping[str, str]) -> None:
        """Raise `StoreSpecError` if the options are wrong. Opens and creates nothing."""

    def places(self, options: Mapping[str, str]) -> Sequence[str]:
        """Return the directories outside of the work directory to which the store must write."""
        return ()

    def bridge_core(self, options: Mapping[str, str], number: int) -> MessageCore:
        """Return a core for a program that joins the networks of kernels which share the store's
        memory. Each has a number from 0. The caller closes the core. Raises `StoreSpecError`.
        """
        raise StoreSpecError("bridge", "the memory of this store is not shared by several kernels")

    def of_workers(self, options: Mapping[str, str], workers: int) -> WorkerOptions:
        """Return the stores of a cluster that starts with this many workers on this host.

        Raises `StoreSpecError` if so many workers cannot have such stores.
        """
        return WorkerOptions(options)


def load_kind(spec: str) -> tuple[StoreKind, str, dict[str, str]]:
    """Return the kind that a specification names, its name, and the options.

    Raises `StoreSpecError`, also if the options are wrong, and PluginError if the kind is not
    installed.
    """
    name, options = parse_spec(spec)
    found = plugins.load(GROUP, name)
    kind = found if isinstance(found, StoreKind) else StoreKind(found)
    kind.check(options)
    return kind, name, options


def describe_kinds() -> str:
    """Return what `--store` accepts, for help texts."""
    names = ", ".join(plugins.names(GROUP))
    return f"{names}; options after a colon (default: {VARIABLE}, or {DEFAULT})"
