"""Answers queries about objects, and retains objects independently of jobs.

    object {object}             one object in detail, with its reference
    objects {first, kept}       a page of all objects, or of kept objects

Queries name an object by its id. A kept object can also be named by the name under which it was
put, if that is unique, or by `last`. The changes `keep {name, reference, copies}` and
`discard {object}` start and stop keeping an object.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from ciel.core.errors import CielError
from ciel.core.events import COPIES_MAX
from ciel.core.graph.objects import ObjectNode
from ciel.core.ids import UPLOAD_PREFIX, ObjectId
from ciel.core.refs import (
    INLINE_MAX_BYTES,
    Concrete,
    Failure,
    Reference,
    SocketStream,
    Stream,
    Sweetheart,
    Value,
    locations_of,
)
from ciel.core.tasks import TaskState
from ciel.master.state.machine import MasterMachine
from ciel.master.state.retention import Kept

LISTED_MAX = 1000
KEPT_MAX: Final = 100_000
NAME_MAX_LENGTH: Final = 200
NEWEST: Final = "last"
_RESERVED_NAMES = frozenset((NEWEST, "all"))
_SHOWN_MAX_LENGTH = 150
_CANDIDATES_MAX = 5


class UnknownObjectError(CielError):
    """A selector matches no object, or more than one."""


class CannotKeepError(CielError):
    """An object cannot be kept or discarded as requested."""


# --- changes --------------------------------------------------------------------------------------


def keep(
    machine: MasterMachine, name: Any, ref: Any, now_s: float, copies: Any = 1
) -> dict[str, Any]:
    """Keep an upload that no job knows yet, until it is discarded. Jobs may read it meanwhile.

    As many workers as there are `copies` hold it.
    """
    if not isinstance(name, str) or len(name) > NAME_MAX_LENGTH:
        raise CannotKeepError(f"a name is a string of at most {NAME_MAX_LENGTH} characters")
    if name in _RESERVED_NAMES:
        raise CannotKeepError(f"an object cannot be called {name}")
    if not isinstance(ref, Value | Concrete | Sweetheart) or not ref.id.startswith(UPLOAD_PREFIX):
        raise CannotKeepError("only objects that were uploaded to workers can be retained")
    if type(copies) is not int or not 1 <= copies <= COPIES_MAX:
        raise CannotKeepError(f"an object has 1 to {COPIES_MAX} copies")
    node = machine.graph.objects.get(ref.id)
    if node is not None and (not node.is_future or node.producer is not None):
        raise CannotKeepError(f"the object {ref.id} exists already")
    if len(machine.kept) >= KEPT_MAX:
        raise CannotKeepError(
            f"{KEPT_MAX} objects are retained already; ciel object rm removes some"
        )
    if not isinstance(ref, Value):
        there = {worker.facts.netloc for worker in machine.workers.values()} & locations_of(ref)
        if not there:
            raise CannotKeepError(
                "the workers that stored the object are not connected; put it again"
            )
        ref = Concrete(ref.id, ref.size_bytes, frozenset(there))
    elif len(ref.content) > INLINE_MAX_BYTES:
        raise CannotKeepError(
            f"the content has more than {INLINE_MAX_BYTES} bytes: upload it to a worker, and pass "
            "its reference"
        )
    add_kept(machine, name, ref, now_s, copies)
    return describe(machine, ref.id, now_s)


def add_kept(machine: MasterMachine, name: str, ref: Reference, now_s: float, copies: int) -> None:
    """Add an object to the kept ones, without a check."""
    machine.kept[ref.id] = Kept(name, now_s)
    machine.graph.objects.ensure(ref.id).holds += 1
    machine.graph.publish(ref)
    machine.replication.claim(ref, copies, None)


def discard(machine: MasterMachine, object_id: ObjectId) -> dict[str, Any]:
    """Stop keeping an object.

    If jobs read it, it stays until they are removed; otherwise it is deleted now.
    """
    if object_id not in machine.kept:
        shown = shown_name(object_id)
        why = "was not stored by ciel object put: it is deleted with the job that produced it"
        raise CannotKeepError(f"{shown} {why}")
    del machine.kept[object_id]
    machine.replication.release(object_id)
    node = machine.graph.objects.nodes[object_id]
    node.holds -= 1
    readers = [job.number for job in machine.jobs.values() if object_id in job.foreign]
    if not (readers or node.holds or node.users or node.wanters):
        machine.forget(object_id)
    return {"object": object_id, "read_by": readers}


# --- queries --------------------------------------------------------------------------------------


def shown_name(name: Any) -> str:
    """Return a selector as one line, for an error message."""
    text = str(name)[:_SHOWN_MAX_LENGTH]
    return text if text.isprintable() else ascii(text)


def find(machine: MasterMachine, selector: Any) -> ObjectId:
    """Return the id of the object that a selector means; raises UnknownObjectError."""
    if isinstance(selector, str):
        if selector == NEWEST and machine.kept:  # takes precedence over an object with this id
            return next(reversed(machine.kept))
        if selector in machine.graph.objects.nodes:
            return ObjectId(selector)
        named = [object_id for object_id, kept in machine.kept.items() if kept.name == selector]
        if len(named) == 1:
            return named[0]
        if named:
            shown = ", ".join(named[-_CANDIDATES_MAX:])
            raise UnknownObjectError(
                f"{len(named)} objects are called {selector}; name one by its id: {shown}"
            )
    shown = shown_name(selector)
    raise UnknownObjectError(
        f"no object {shown} is known; `ciel object list` lists retained objects"
    )


def describe(machine: MasterMachine, object_id: ObjectId, now_s: float) -> dict[str, Any]:
    """Describe an object: its state, its locations, its producer, and the jobs that want it."""
    node = machine.graph.objects.nodes[object_id]
    kept = machine.kept.get(object_id)
    producer = node.producer
    state, size_bytes = standing(node)
    return {
        "object": object_id,
        "state": state,
        "size_bytes": size_bytes,
        "at": [] if node.ref is None else sorted(locations_of(node.ref)),
        "made_by": None if producer is None else producer.spec.id,
        "job": None if producer is None else producer.job.number,
        "wanted_by": [job.number for job in node.wanters],
        "copies": machine.replication.describe(object_id),
        "name": None if kept is None else kept.name,
        "age_s": None if kept is None else round(now_s - kept.since_s, 3),
    }


def standing(node: ObjectNode) -> tuple[str, int | None]:
    """Return the state of an object, as a word, and its size if that is known."""
    ref = node.ref
    if ref is None or not node.is_consumable:
        was_there = node.producer is not None and node.producer.state is TaskState.DONE
        return "gone" if was_there else "expected", None
    if isinstance(ref, Failure):
        return "failed", None
    if isinstance(ref, Stream | SocketStream):
        return "growing", None
    return "there", getattr(ref, "size_bytes", None)


def listed(machine: MasterMachine, arguments: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Return a page of all objects, in the order in which they became known, or of kept objects.

    `next` is the `first` of the next page, None at the end. If objects are forgotten between two
    queries, the next page may skip some.
    """
    everything = machine.kept if arguments.get("kept") else machine.graph.objects.nodes
    start = start_of(arguments.get("first"), len(everything))
    ids = islice(everything, start, start + LISTED_MAX)
    rows = [describe(machine, ObjectId(object_id), now_s) for object_id in ids]
    end = start + len(rows)
    return {"objects": rows, "next": end if end < len(everything) else None}


def start_of(first: Any, total: int) -> int:
    """Return the start of a page from a client's `first`, which may be invalid."""
    return min(first, total) if isinstance(first, int) and first > 0 else 0


def answer(machine: MasterMachine, selector: Any, now_s: float) -> dict[str, Any]:
    """Describe an object, with its reference."""
    object_id = find(machine, selector)
    reference: Reference = machine.graph.objects.reference(object_id)
    return {**describe(machine, object_id, now_s), "reference": reference}


def change(
    machine: MasterMachine, topic: str, arguments: dict[str, Any], now_s: float
) -> dict[str, Any]:
    """Carry out `keep` or `discard`."""
    if topic == "keep":
        name, ref = arguments.get("name"), arguments.get("reference")
        return keep(machine, name, ref, now_s, arguments.get("copies", 1))
    return discard(machine, find(machine, arguments.get("object")))


CHANGES: Final = frozenset(("keep", "discard"))
