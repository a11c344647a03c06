"""The object table: the reference of each object, its locations, and the jobs that want it.

An entry whose `ref` is None is a future: most entries are futures most of the time, and None takes
no memory. `holds` counts the reasons to keep an object, apart from jobs that want it. An object
without holds that no job wants may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ciel.core.ids import ObjectId
from ciel.core.jobs import Job
from ciel.core.refs import (
    CONSUMABLE,
    NOWHERE,
    STREAMS,
    Concrete,
    Failure,
    Fixed,
    Future,
    Reference,
    Sweetheart,
    Tombstone,
    Value,
    locations_of,
    merge,
)

if TYPE_CHECKING:
    from ciel.core.graph.nodes import TaskNode

NO_JOBS: tuple[Job, ...] = ()
_SETTLED = frozenset((Value, Concrete, Sweetheart, Failure, Fixed))
_FIXED: frozenset[type] = frozenset((Fixed,))


class ObjectNode:
    """One object: its reference, its producer, its number of users, and the jobs that want it.

    All tables of the master contain the string `id` itself: there are millions of ids, and each
    copy would take as much memory as this node.
    """

    __slots__ = ("_ref", "holds", "id", "producer", "users", "wanters")

    def __init__(self, object_id: ObjectId, producer: TaskNode | None = None) -> None:
        self.id = object_id
        # For a `Value`, this is its content alone: large jobs consist of values, and memory counts.
        self._ref: Reference | str | None = None
        self.producer = producer
        self.holds = 0
        self.users = 0  # other tasks that have it as input or output; at 0 it may be forgotten
        self.wanters: tuple[Job, ...] = NO_JOBS

    @property
    def ref(self) -> Reference | None:
        """Its reference; None if it is a future."""
        ref = self._ref
        return Value(self.id, ref) if isinstance(ref, str) else ref

    @ref.setter
    def ref(self, ref: Reference | None) -> None:
        self._ref = ref.encoded if type(ref) is Value else ref

    @property
    def is_future(self) -> bool:
        """Whether nothing is known of it but its id."""
        return self._ref is None

    @property
    def is_settled(self) -> bool:
        """Whether it is complete or has failed (a stream has not yet)."""
        ref = self._ref
        return type(ref) is str or type(ref) in _SETTLED

    @property
    def is_consumable(self) -> bool:
        ref = self._ref
        return type(ref) is str or type(ref) in CONSUMABLE

    @property
    def failure(self) -> Failure | None:
        """The reason why it could not be produced, if that is known."""
        ref = self._ref
        return ref if isinstance(ref, Failure) else None


class ObjectTable:
    """All objects of all jobs, by id; and the objects at each location."""

    def __init__(self) -> None:
        self.nodes: dict[str, ObjectNode] = {}
        self.growing: dict[ObjectId, None] = {}  # objects that are streams now
        self.fixed: dict[ObjectId, None] = {}  # objects that are waiting processes
        self.replaced: dict[str, list[ObjectId]] = {}  # copies of objects that are inline now
        self.watched: set[ObjectId] = set()  # the owner of this set reads their changes
        self.changed: dict[ObjectId, None] = {}  # of `watched`: other locations, or forgotten
        self._used: dict[str, int] = {}  # the number of jobs that upload or only read an object
        self._held: dict[str, dict[ObjectId, None]] = {}
        self._places: dict[frozenset[str], frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def get(self, object_id: str) -> ObjectNode | None:
        return self.nodes.get(object_id)

    def ensure(self, object_id: ObjectId) -> ObjectNode:
        node = self.nodes.get(object_id)
        if node is None:
            node = self.nodes[object_id] = ObjectNode(object_id)
        return node

    def reference(self, object_id: ObjectId) -> Reference:
        """Return the reference of an object; a Future if it is unknown."""
        node = self.nodes.get(object_id)
        ref = None if node is None else node.ref
        return Future(object_id) if ref is None else ref

    def update(self, node: ObjectNode, ref: Reference) -> bool:
        """Merge a reference into an entry.

        Return whether this made the object settled or consumable.
        """
        old = node.ref
        if old is None:
            if type(ref) is Value:  # it has no location, so no other table changes
                node.ref = ref
                return True
            old = Future(ref.id)
        new = merge(old, ref)
        if new is old:
            return False
        was_consumable, was_settled = node.is_consumable, node.is_settled
        if type(new) is Value and type(old) not in STREAMS:
            for place in locations_of(old):
                self.replaced.setdefault(place, []).append(node.id)
        self._replace(node, new)
        return (node.is_consumable and not was_consumable) or (node.is_settled and not was_settled)

    def lose(self, node: ObjectNode, location: str) -> bool:
        """Remove a location from an object; return whether the object stops being consumable."""
        if node.ref is None or location not in locations_of(node.ref):
            return False
        was_consumable = node.is_consumable
        left = merge(node.ref, Tombstone(node.id, frozenset((location,))))
        if type(node.ref) is Fixed and node.producer is not None:
            left = Future(node.id)  # its producer can run again and start another process
        self._replace(node, left)
        return was_consumable and not node.is_consumable

    def forget(self, node: ObjectNode) -> frozenset[str]:
        """Make an object a future again; return the locations of its copies, to be deleted."""
        places = NOWHERE if node.ref is None else locations_of(node.ref)
        self._replace(node, None)
        return places

    def use(self, uses: dict[ObjectId, None], object_id: ObjectId) -> None:
        """Add an object to a job's `foreign` or `uploads`."""
        if object_id not in uses:
            uses[object_id] = None
            self._used[object_id] = self._used.get(object_id, 0) + 1

    def end_use(self, uses: dict[ObjectId, None], object_id: ObjectId) -> None:
        """Remove an object from a job's `foreign` or `uploads`, which must contain it."""
        del uses[object_id]
        left = self._used[object_id] - 1
        if left:
            self._used[object_id] = left
        else:
            del self._used[object_id]

    def is_used(self, object_id: str) -> bool:
        """Whether a job has uploaded an object, or reads it without producing it."""
        return object_id in self._used

    def take_replaced(self) -> dict[str, list[ObjectId]]:
        """Return copies to be deleted, by location: the references contain the content now."""
        replaced, self.replaced = self.replaced, {}
        return replaced

    def locations(self) -> list[str]:
        """Return all locations of objects, in alphabetical order."""
        return sorted([place for place, held in self._held.items() if held])

    def held_at(self, location: str) -> list[ObjectId]:
        return list(self._held.get(location, ()))

    def has_any_at(self, location: str) -> bool:
        return bool(self._held.get(location))

    def remove(self, object_id: ObjectId) -> None:
        node = self.nodes.pop(object_id, None)
        if node is not None:
            self._replace(node, None)

    def _replace(self, node: ObjectNode, ref: Reference | None) -> None:
        object_id = node.id
        before = NOWHERE if node.ref is None else locations_of(node.ref)
        if self.watched and object_id in self.watched:
            self.changed[object_id] = None
        if isinstance(ref, Concrete):
            # All objects at the same locations share one frozenset: a frozenset takes more memory
            # than the rest of the entry.
            places = self._places.setdefault(ref.locations, ref.locations)
            ref = Concrete(object_id, ref.size_bytes, places)
        old, new = type(node.ref), type(ref)
        if old is not new:
            for kinds, known in ((STREAMS, self.growing), (_FIXED, self.fixed)):
                if new in kinds:
                    known[object_id] = None
                elif old in kinds:
                    del known[object_id]
        node.ref = None if isinstance(ref, Future) else ref
        after = NOWHERE if ref is None else locations_of(ref)
        if before is after:
            return
        for place in before - after:
            del self._held[place][object_id]
        for place in after - before:
            self._held.setdefault(place, {})[object_id] = None

    def problems(self) -> Iterator[str]:
        """Yield every broken link between objects and locations, for tests."""
        for object_id, node in self.nodes.items():
            if node.ref is not None:
                if node.ref.id != object_id:
                    yield f"O1 {object_id} has a reference to {node.ref.id}"
                for place in locations_of(node.ref):
                    if object_id not in self._held.get(place, ()):
                        yield f"O2 {object_id} is at {place}, which does not list it"
            if node.holds < 0:
                yield f"O3 {object_id} has {node.holds} holds"
        for kinds, known in ((STREAMS, self.growing), (_FIXED, self.fixed)):
            there = {o for o, node in self.nodes.items() if type(node.ref) in kinds}
            for object_id in there ^ known.keys():
                yield f"O6 {object_id} is wrongly listed or missing in {sorted(map(str, kinds))}"
        for place, objects in self._held.items():
            for object_id in objects:
                held = self.nodes.get(object_id)
                if held is None or held.ref is None or place not in locations_of(held.ref):
                    yield f"O4 {place} lists {object_id}, which is not at that location"
