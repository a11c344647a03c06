"""Gives a worker's named resources to attempts, and chooses the indices that each one gets.

An attempt that cannot have all its resources now waits, and holds none of them meanwhile. Later
attempts do not overtake it at the resources that it needs; attempts that need others do. A fraction
of an index comes from the index that is used most and has it, so that whole indices stay free.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ciel.core.offers.resources import ONE, Amounts, Given, Offer, totals_of
from ciel.worker.state.orders import Key

Indices = tuple[tuple[str, int], ...]


class _Waiting(NamedTuple):
    """An attempt that waits. `again`: the indices that it had before, if it needs the same."""

    order: tuple[int, int]
    key: Key
    amounts: Amounts
    again: Given


class ResourcePool:
    """The resources of a worker, by name: how much is free, and which attempts have the rest."""

    def __init__(self, offers: Iterable[Offer] = ()) -> None:
        self.offers = tuple([offer for offer in offers if offer.amount])
        self._totals = totals_of(self.offers)
        self._free = dict(self._totals)  # also of indexed resources
        self._free_indices = {
            offer.name: dict.fromkeys(offer.indices, ONE) for offer in self.offers if offer.indices
        }
        self._held: dict[Key, tuple[Amounts, Given]] = {}
        self._queue: list[_Waiting] = []  # by priority, then order of arrival
        self._sequence = 0

    def can_hold(self, amounts: Amounts) -> bool:
        """Whether an attempt could have these resources if it were alone."""
        return all(amount <= self._totals.get(name, 0) for name, amount in amounts)

    def has(self, key: Key) -> bool:
        """Whether an attempt has its resources."""
        return key in self._held

    def given(self, key: Key) -> Given:
        """Return the indices that an attempt has."""
        held = self._held.get(key)
        return () if held is None else held[1]

    @property
    def waiting(self) -> list[Key]:
        """The attempts that wait for resources, in their order."""
        return [waiting.key for waiting in self._queue]

    def ask(self, key: Key, amounts: Amounts, priority: int = 0, again: Given = ()) -> bool:
        """Give an attempt its resources, or let it wait; return whether it has them.

        `again`: exactly these indices, which the attempt's process had before.
        """
        self._sequence += 1
        waiting = _Waiting((-priority, self._sequence), key, amounts, again)
        insort(self._queue, waiting)
        self._admit()
        return key in self._held

    def leave(self, key: Key) -> list[Key]:
        """Take back what an attempt has, or stop its wait; return the attempts that it lets start.

        An attempt that has nothing and does not wait changes nothing.
        """
        held = self._held.pop(key, None)
        if held is None:
            before = len(self._queue)
            self._queue = [waiting for waiting in self._queue if waiting.key != key]
            return self._admit() if len(self._queue) != before else []
        amounts, given = held
        for name, amount in amounts:
            self._free[name] += amount
        for name, indices in given:
            for index, amount in indices:
                self._free_indices[name][index] += amount
        return self._admit() if self._queue else []

    def _admit(self) -> list[Key]:
        """Give resources to the attempts that wait, in their order."""
        admitted: list[Key] = []
        left: list[_Waiting] = []
        wanted: set[str] = set()  # by attempts that go on waiting
        for waiting in self._queue:
            names = [name for name, _ in waiting.amounts]
            given = None if not wanted.isdisjoint(names) else self._find(waiting)
            if given is None:
                wanted.update(names)
                left.append(waiting)
                continue
            self._take(waiting, given)
            admitted.append(waiting.key)
        self._queue = left
        return admitted

    def _find(self, waiting: _Waiting) -> Given | None:
        """Return the indices for an attempt, or None if it cannot have all its resources now."""
        if any(self._free.get(name, 0) < amount for name, amount in waiting.amounts):
            return None
        again = dict(waiting.again)
        found: list[tuple[str, Indices]] = []
        for name, amount in waiting.amounts:
            free = self._free_indices.get(name)
            if free is None:
                continue
            indices = again.get(name) or _choose(free, amount)
            if not indices or any(free[index] < share for index, share in indices):
                return None
            found.append((name, indices))
        return tuple(found)

    def _take(self, waiting: _Waiting, given: Given) -> None:
        for name, amount in waiting.amounts:
            self._free[name] -= amount
        for name, indices in given:
            for index, amount in indices:
                self._free_indices[name][index] -= amount
        self._held[waiting.key] = waiting.amounts, given

    def problems(self) -> Iterator[str]:
        """Yield the broken invariants."""
        used = dict.fromkeys(self._totals, 0)
        shares = {name: dict.fromkeys(free, 0) for name, free in self._free_indices.items()}
        for key, (amounts, given) in self._held.items():
            for name, amount in amounts:
                used[name] += amount
            for name, indices in given:
                for index, amount in indices:
                    shares[name][index] += amount
                if sum([amount for _, amount in indices]) != dict(amounts)[name]:
                    yield f"W7 {key} has {indices} of {name}, but needs {dict(amounts)[name]}"
        for name, total in self._totals.items():
            if used[name] + self._free[name] != total or self._free[name] < 0:
                yield f"W7 {self._free[name]} of {name} is free of {total}, {used[name]} is taken"
        for name, free in self._free_indices.items():
            for index, left in free.items():
                if left < 0 or left + shares[name][index] != ONE:
                    yield f"W7 {left} of index {index} of {name} is free, {shares[name]} are taken"


def _choose(free: dict[str, int], amount: int) -> Indices:
    """Return the indices for an amount, in the order of the offer; nothing if they are not free."""
    whole, part = divmod(amount, ONE)
    shared = [(left, index) for index, left in free.items() if part and part <= left < ONE]
    unused = [index for index, left in free.items() if left == ONE]
    if len(unused) < whole + bool(part and not shared):
        return ()
    chosen = [(index, ONE) for index in unused[:whole]]
    if part:
        chosen.append((min(shared)[1] if shared else unused[whole], part))
    return tuple(chosen)
