"""The kind of the store `scc`: all workers of a host share an instance, each as one core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ciel.scc.instances import ROOT, directory_name, instance_of
from ciel.scc.store import open_bridge_core, open_scc, read_options
from ciel.storage.errors import StorageError, StoreSpecError
from ciel.storage.interface import MessageCore
from ciel.storage.specs import Left, StoreKind, WorkerOptions, check_instance
from ciel.storage.spill import check_spill, left_by_spill


class SccKind(StoreKind):
    """Describes stores that are not open."""

    def check(self, options: Mapping[str, str]) -> None:
        read_options(options)
        if "instance" in options:
            check_instance(options["instance"])
        check_spill(options)

    def places(self, options: Mapping[str, str]) -> Sequence[str]:
        return (ROOT,)

    def bridge_core(self, options: Mapping[str, str], number: int) -> MessageCore:
        return open_bridge_core(options, number)

    def of_workers(self, options: Mapping[str, str], workers: int) -> WorkerOptions:
        if "path" in options:
            return CoresInFile(options)
        return SharedCores(options, workers)


class CoresInFile(WorkerOptions):
    """The options of workers whose image lies in a file: each takes the first free core, because
    workers of other clusters and kernels may have cores, too.
    """

    def left(self, number: int, names: Sequence[str]) -> Iterator[Left]:
        if number == 0:
            with suppress(StorageError):  # no file, no instance
                name = directory_name(instance_of(self.given["path"]))
                yield Left(str(Path(ROOT, name)), is_leased=True)
        yield from left_by_spill(self.given)


class SharedCores(WorkerOptions):
    """The options of workers that share an instance: each has its own core."""

    def __init__(self, given: Mapping[str, str], workers: int) -> None:
        super().__init__(given)
        core, cores = given.get("core"), int(given.get("cores", workers))
        if core is not None and workers > 1:
            reason = (
                f"it is for one worker, but there are {workers}; leave it out, so that each worker "
                "has its own core"
            )
            raise StoreSpecError(f"core={core}", reason)
        if cores < workers:
            reason = (
                f"{workers} workers need a core each; use cores={workers} or more, or leave it out"
            )
            raise StoreSpecError(f"cores={cores}", reason)
        self._workers_max = cores if core is None else 1
        self._cores = cores

    def of(self, number: int, names: Sequence[str]) -> Mapping[str, str]:
        usual = {"instance": names[0], "cores": str(self._cores), "core": str(number)}
        return usual | self.given

    def refusal(self, number: int) -> str:
        if number < self._workers_max:
            return ""
        return (
            f"the scc store of this cluster has cores for {self._workers_max} workers, and all "
            "are in use; start the cluster with more, as in store='scc:cores=8'"
        )

    def left(self, number: int, names: Sequence[str]) -> Iterator[Left]:
        if number == 0:
            instance = self.given.get("instance", names[0])
            path = Path(ROOT, directory_name(instance))
            yield Left(str(path), is_leased="instance" in self.given)
        yield from left_by_spill(self.given)


KIND = SccKind(open_scc)
