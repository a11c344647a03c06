"""Chooses the stores of a local cluster's workers.

A store under /dev/shm gets a known name, so that its files can be removed after all processes were
killed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ciel.client.errors import ClusterOptionError
from ciel.storage.errors import StoreSpecError
from ciel.storage.specs import parse_spec

_SHARE_MIN_BYTES = 1 << 20
_INSTANCE = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the worker refuses any other name


class WorkerStores:
    """The stores of `workers` workers, and of workers that are added later.

    `spec`: the specification of the store; None: the default store. Raises ClusterOptionError if
    these workers cannot have such stores.
    """

    def __init__(self, spec: str | None, workers: int) -> None:
        self.spec = spec
        self._share_bytes = _memory_share_bytes(workers)
        try:
            self._name, self._given = parse_spec(spec) if spec else ("", {})
        except StoreSpecError as error:
            raise ClusterOptionError(str(error)) from error
        self.cores: int | None = None
        """How many workers can share the store; None if each has its own."""
        if self._name == "scc":
            self.cores = self._count_cores(workers)

    def _count_cores(self, workers: int) -> int:
        core, cores = self._given.get("core"), self._given.get("cores", str(workers))
        if core is not None and workers > 1:
            raise ClusterOptionError(
                f"'core={core}' is for one worker, but there are {workers}; leave it out, so that "
                "each worker has its own core"
            )
        count = int(cores) if cores.isdecimal() else workers  # the worker reports a wrong number
        if 0 < count < workers:
            raise ClusterOptionError(
                f"'cores={count}' is too few: {workers} workers need a core each; use "
                f"cores={workers} or more, or leave it out"
            )
        return 1 if core is not None else count

    def spec_of(self, number: int, own: str, shared: str) -> str | None:
        """Return the specification for worker `number`.

        If the given specification has no name, the store is named `own`, or `shared` if all workers
        share it.
        """
        if self._name == "shm":
            options = {"instance": own, "capacity": str(self._share_bytes)} | self._given
            if self._given.get("arena") == "yes" and "capacity" not in self._given:
                del options["capacity"]  # the arena has its own memory
        elif self._name == "scc":
            usual = {"instance": shared, "cores": str(self.cores), "core": str(number)}
            options = usual | self._given
        else:
            return self.spec
        if "instance" in self._given:
            options["instance"] = self._instance(number)
        return f"{self._name}:{','.join(f'{name}={value}' for name, value in options.items())}"

    def left_by(self, number: int) -> Iterator[str]:
        """Yield the paths of files of worker `number` whose names other clusters may use as well.

        A path may be a prefix followed by `*`.
        """
        if self._name not in ("shm", "scc"):
            return
        instance = self._instance(number)
        if _INSTANCE.fullmatch(instance):
            name = f"scc-{instance}" if self._name == "scc" else instance
            yield from (str(shm_directory(name)), str(in_arena(name)))
        spill = self._given.get("spill", "")
        if spill.startswith("/") and "\n" not in spill:
            yield f"{spill}/ciel-spill-*"

    def _instance(self, number: int) -> str:
        """Return the name in the specification, or an empty text.

        Unless all workers share the store, each worker gets a different name.
        """
        given = self._given.get("instance", "")
        is_own = given and self._name != "scc" and number > 0
        return f"{given}-{number + 1}" if is_own else given


def shm_directory(instance: str) -> Path:
    """Return the directory of the store in memory with this name."""
    return Path("/dev/shm", f"ciel-{instance}")


def in_arena(instance: str) -> Path:
    """Return the directory of the store with huge pages that has this name."""
    return shm_directory(f"arena-{os.geteuid()}") / f"ciel-{instance}"


def _memory_share_bytes(workers: int) -> int:
    """Return the capacity of the store of each worker; together they use half of /dev/shm."""
    try:
        device = os.statvfs("/dev/shm")
    except OSError:
        return _SHARE_MIN_BYTES  # the worker reports the error
    return max(device.f_bavail * device.f_frsize // 2 // max(workers, 1), _SHARE_MIN_BYTES)
