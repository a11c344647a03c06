"""Chooses the stores of a local cluster's workers, and lists the directories to remove later."""

from __future__ import annotations

import secrets
from pathlib import PurePath

from ciel.client.errors import ClusterOptionError
from ciel.plugins import PluginError
from ciel.storage.errors import StoreSpecError
from ciel.storage.specs import CLEANED_PREFIX, DEFAULT, Left, load_kind


class WorkerStores:
    """The stores of `workers` workers, and of workers that are added later.

    `spec`: the specification of the store; None: the default store. Raises ClusterOptionError if
    these workers cannot have such stores.
    """

    def __init__(self, spec: str | None, workers: int) -> None:
        self.spec = spec
        self.names: list[str] = []
        """A random name for each worker so far, by number."""
        try:
            kind, self._kind_name, options = load_kind(spec or DEFAULT)
            self._options = kind.of_workers(options, workers)
        except (StoreSpecError, PluginError) as error:
            raise ClusterOptionError(str(error)) from error

    def refusal(self) -> str:
        """Return why the cluster cannot have another worker; empty if it can."""
        return self._options.refusal(len(self.names))

    def add(self) -> list[Left]:
        """Name the store of another worker; return the directories that the store may leave.

        Raises ClusterOptionError.
        """
        number = len(self.names)
        self.names.append(secrets.token_hex(8))
        try:
            found = [*self._options.left(number, self.names)]
        except StoreSpecError as error:
            raise ClusterOptionError(str(error)) from error
        for left in found:
            _require_cleanable(left, self._kind_name, self.names)
        return found

    def spec_of(self, number: int) -> str:
        """Return the specification for worker `number`."""
        options = self._options.of(number, self.names)
        text = ",".join(f"{name}={value}" for name, value in options.items())
        return f"{self._kind_name}:{text}" if text else self._kind_name


def _require_cleanable(left: Left, kind: str, names: list[str]) -> None:
    """Raise ClusterOptionError if removing a directory could remove what the store did not create.

    The kinds of stores in other packages say which directories they are.
    """
    path = PurePath(left.path)
    if not path.is_absolute() or ".." in path.parts or "\n" in left.path:
        reason = "it is not an absolute path in one line and without .."
    elif not path.name.startswith(CLEANED_PREFIX):
        reason = f"its last part does not start with {CLEANED_PREFIX}"
    elif not left.is_leased and not any(name in path.name for name in names):
        reason = "its last part does not contain the name of the worker"
    else:
        return
    raise ClusterOptionError(
        f"the store {kind} is faulty: a cluster must not remove {left.path!r}, because {reason}"
    )
