"""The API of key-value bases: `client.kv("scores")`, or `ciel.kv("scores")` in a task.

Keys are texts. Values are what JSON can represent, bytes, and whatever can be pickled (`values`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from ciel.state.batches import (
    Delete,
    Increment,
    Insert,
    Put,
    Renew,
    Request,
    Same,
    Step,
    Update,
)
from ciel.state.errors import ChangedError, KeyMissingError
from ciel.state.interface import Base, Closing, Snapshot
from ciel.state.leases import LEASE_S, Lock
from ciel.state.names import Names, Where
from ciel.state.queues import Queue
from ciel.state.signals import Barrier, Changes, Event
from ciel.state.transactions import Transaction, transact
from ciel.state.values import Values

T = TypeVar("T")
ONCE_KEPT_S: Final = 30 * 86400.0
"""How long a base remembers that a task has done something once."""


def no_task(name: str) -> str:
    """Refuse `once` outside of tasks."""
    raise ValueError("'once' is for tasks, which may be run again after a failure")


class KeyValues(Closing):
    """The rows of one name in a base. Several threads may use it.

    Each operation takes effect at one moment, or raises an error of `ciel.state.errors` and has no
    effect. Locks, queues, events and barriers are rows of the base, too, but not among these.
    """

    def __init__(
        self, base: Base, names: Names, values: Values,
        task_of: Callable[[str], str] = no_task, *, owns_base: bool = True,
    ) -> None:  # fmt: skip
        self._base = base
        self._names = names
        self._values = values
        self._task_of = task_of
        self._owns_base = owns_base

    def close(self) -> None:
        """Close the connection to the base, unless the tasks of this process share it."""
        if self._owns_base:
            self._base.close()

    # One key

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, `default` if the key is missing."""
        content = self._base.get(self._names.key(key))
        return default if content is None else self._values.decode(content)

    def __getitem__(self, key: str) -> Any:
        content = self._base.get(full := self._names.key(key))
        if content is None:
            raise KeyMissingError(full)
        return self._values.decode(content)

    def __contains__(self, key: str) -> bool:
        return self._base.get(self._names.key(key)) is not None

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of keys at one moment; missing keys are left out."""
        wanted = list(keys)
        contents = self._base.read([self._names.key(key) for key in wanted])
        return {
            key: self._values.decode(content)
            for key, content in zip(wanted, contents, strict=True)
            if content is not None
        }

    def put(self, key: str, value: Any, ttl_s: float | None = None) -> None:
        """Set a value, which is removed after `ttl_s` seconds if that is given."""
        self._base.apply([Put(self._names.key(key), self._values.encode(value), ttl_s)])

    __setitem__ = put

    def insert(self, key: str, value: Any, ttl_s: float | None = None) -> None:
        """Set the value of a key that is missing; raises KeyPresentError."""
        self._base.apply([Insert(self._names.key(key), self._values.encode(value), ttl_s)])

    def update(self, key: str, value: Any) -> None:
        """Set the value of a key that is there; raises KeyMissingError."""
        self._base.apply([Update(self._names.key(key), self._values.encode(value))])

    def delete(self, key: str) -> None:
        """Remove a key; raises KeyMissingError."""
        self._base.apply([Delete(self._names.key(key))])

    __delitem__ = delete

    def increment(self, key: str, by: int = 1) -> int:
        """Add to an integer, 0 if the key is missing; return the sum. Raises NotANumberError."""
        (total,) = self._base.apply([Increment(self._names.key(key), by)])
        return int(total or 0)

    def compare_and_set(self, key: str, expected: Any, value: Any) -> bool:
        """Set a value if the present one is stored as `expected` would be, and return True."""
        full = self._names.key(key)
        steps: list[Step] = [
            Same(full, self._values.encode(expected)),
            Update(full, self._values.encode(value)),
        ]
        try:
            self._base.apply(steps)
        except ChangedError:
            return False
        return True

    def renew(self, key: str, ttl_s: float | None) -> None:
        """Let a key last for another time, None for ever; raises KeyMissingError."""
        self._base.apply([Renew(self._names.key(key), ttl_s)])

    # Many keys

    def bulk_put(self, pairs: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Set the values of keys, which become visible together."""
        rows = pairs.items() if isinstance(pairs, Mapping) else pairs
        self._base.apply([Put(self._names.key(key), self._values.encode(v)) for key, v in rows])

    def scan(
        self, first: str | None = None, last: str | None = None, *, prefix: str = "",
        where: Where | None = None,
    ) -> Iterator[tuple[str, Any]]:  # fmt: skip
        """Yield keys and values, from `first` to before `last`, or with a prefix, that `where`
        accepts; ordered by key, if the base is. Changes meanwhile may be seen in part.
        """
        rows = self._base.scan(*self._names.range(first, last, prefix))
        return self._names.decoded(rows, self._values.decode, where)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.scan())

    def atomic_scan(
        self, first: str | None = None, last: str | None = None, *, prefix: str = "",
        where: Where | None = None,
    ) -> list[tuple[str, Any]]:  # fmt: skip
        """Return what `scan` yields, as of one moment and ordered by key; raises LackingError."""
        with self._base.snapshot() as moment:
            rows = moment.rows(*self._names.range(first, last, prefix))
            return list(self._names.decoded(rows, self._values.decode, where))

    def snapshot(self) -> Moment:
        """Return all rows as of this moment, for a `with`; raises LackingError."""
        return Moment(self._base.snapshot(), self._names, self._values)

    def clear(self, prefix: str = "") -> int:
        """Remove each key with a prefix; return their number."""
        removed = 0
        for key, _ in list(self._base.scan(*self._names.range(None, None, prefix))):
            try:
                self._base.apply([Delete(key)])
                removed += 1
            except KeyMissingError:
                pass
        return removed

    # Several keys together

    def transaction(self, once: str = "") -> Transaction:
        """Return a transaction, for a `with`.

        `once`: a name within this task. If an earlier attempt of the task has carried out a
        transaction of this name, this one does nothing, and its `was_done` is True. Calls that a
        client sends together may share a task, so the name should contain their arguments.
        """
        return self._transaction(self._once(once))

    def transact(self, function: Callable[[Transaction], T], once: str = "") -> T:
        """Call a function with a transaction, and again while other clients change the rows that it
        reads; return its result. Raises ChangedError after a hundred calls.
        """
        request = self._once(once)
        return transact(lambda: self._transaction(request), function)

    def _transaction(self, request: Request | None) -> Transaction:
        return Transaction(self._base, self._names, self._values, request)

    def _once(self, name: str) -> Request | None:
        if not name:
            return None
        return Request(self._names.inner(f"once/{self._task_of(name)}", name), 1, ONCE_KEPT_S)

    # Waiting

    def lock(self, name: str, lease_s: float = LEASE_S) -> Lock:
        """Return a lock. If its holder dies, it is free at most `lease_s` later."""
        return Lock(self._base, self._names.inner("lock", name), name, lease_s)

    def queue(self, name: str) -> Queue:
        return Queue(self._base, self._names.inner("queue", name), self._values)

    def watch(self, key: str) -> Changes:
        """Return the values that a key has from now on, for a `with` and a `for`."""
        return Changes(self._base, self._names.key(key), self._values)

    def event(self, name: str) -> Event:
        return Event(self._base, self._names.inner("event", name))

    def barrier(self, name: str, parties: int) -> Barrier:
        """Return a barrier, which all of its parties open with the same number."""
        return Barrier(self._base, self._names.inner("barrier", name), parties)


class Moment(Closing):
    """The rows of a name as of one moment."""

    def __init__(self, snapshot: Snapshot, names: Names, values: Values) -> None:
        self._snapshot = snapshot
        self._names = names
        self._values = values

    def get(self, key: str, default: Any = None) -> Any:
        content = self._snapshot.get(self._names.key(key))
        return default if content is None else self._values.decode(content)

    def scan(
        self, first: str | None = None, last: str | None = None, *, prefix: str = "",
        where: Where | None = None,
    ) -> Iterator[tuple[str, Any]]:  # fmt: skip
        """Yield rows, ordered by key; see `KeyValues.scan`."""
        rows = self._snapshot.rows(*self._names.range(first, last, prefix))
        return self._names.decoded(rows, self._values.decode, where)

    def close(self) -> None:
        self._snapshot.close()
