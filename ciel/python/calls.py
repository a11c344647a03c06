"""Calls of functions on their way to a task: what the client (or a task that spawns) writes, and
the program that runs them reads. Several may travel as one task, a *bundle*.

The calls of a bundle lie in *lots*: the outcomes of a lot are one output of the task (`contents`).
A call is known by its lot and its place in it.
"""

from __future__ import annotations

import os
import pickle
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ciel.python.packing import PROTOCOL, Packed, UnpackedError
from ciel.version import __version__

EXECUTOR: Final = "python"
INLINE_MAX_BYTES: Final = 32 << 10
"""Calls up to this size ride in their task; larger ones become an object."""
LOTS_MAX: Final = 8

VERSION: Final = (sys.version_info[0], sys.version_info[1], __version__)

# How an argument that is a future is given to the function.
AS_VALUE, AS_PATH, AS_STREAM = "value", "path", "stream"


class Use(NamedTuple):
    """What stands in an argument's place for a future. `input`: which input of the task holds it,
    or -1: the same bundle makes it; `lot` (only then) and `place` say where. `raw`: it is not
    `contents` but what a program wrote: bytes. `how`: see `AS_VALUE`.
    """

    input: int
    lot: int
    place: int
    raw: bool
    how: str


class Call(NamedTuple):
    """One call. `arguments` are (args, kwargs), packed; `with_object`: the number of the input that
    holds them instead (`contents`, one outcome). `uses`: its futures, in the order of their
    embedding. `is_map`: args are one list of tuples of arguments; the outcome is a list of results
    (see `Mapped`). `limit_s`: after so many seconds a map stops before its next row, and says so by
    an outcome `contents.CUT`; 0: it does not stop. `returns`: it returns so many values, a tuple or
    list, each an outcome of its own: its places follow each other.
    """

    function: int
    arguments: Packed
    uses: tuple[Use, ...] = ()
    with_object: int = -1
    is_map: bool = False
    name: str = ""
    returns: int = 1
    limit_s: float = 0.0


class Mapped(NamedTuple):
    """The value of a call with `is_map`: the results, up to the first that raised; what that
    raised, as `failures.pack_error` gives it, or None.
    """

    values: list[Any]
    error: bytes | None


class Function(NamedTuple):
    """A function: the digest of its packed form, and that; or the number of its input."""

    digest: bytes
    packed: bytes | None
    input: int = -1


class Bundle(NamedTuple):
    """What is in a task's arguments. `places`: directories from which its modules may come
    (sys.path). `streams`: what it yields goes to output 0 while it runs; it is the only call then.
    `raw`: output 0 is what it returns as it is (bytes or a text), for programs to read; it is the
    only call then, too. `locals_wanted`: tracebacks are to show local variables. `timed`: the
    time of each call is noted for a trace (`contents.Times`). `moved`: the directory ("": none) and
    the variables (None: unset) that its client has changed since its job began. `log_level`: that
    of the client's root logger, 0 if nobody has set it.
    """

    version: tuple[int, int, str]
    places: tuple[str, ...]
    functions: tuple[Function, ...]
    lots: tuple[tuple[Call, ...], ...]
    streams: bool = False
    raw: bool = False
    locals_wanted: bool = False
    timed: bool = False
    moved: tuple[str, dict[str, str | None]] | None = None
    log_level: int = 0


def function_of(packed: bytes) -> Function:
    """Return a function that travels in its bundle."""
    return Function(blake2b(packed, digest_size=16).digest(), packed)


def pack_bundle(bundle: Bundle) -> bytes:
    """Return a bundle's bytes. Buffers are copied: what is large belongs into an object."""
    lots = [
        [
            (
                call.function, call.arguments.head,
                tuple([bytes(buffer) for buffer in call.arguments.buffers]),
                tuple(map(tuple, call.uses)), call.with_object, call.is_map, call.name,
                call.returns, call.limit_s,
            )
            for call in lot
        ]
        for lot in bundle.lots
    ]  # fmt: skip
    functions = list(map(tuple, bundle.functions))
    flags = (
        bundle.streams, bundle.raw, bundle.locals_wanted, bundle.timed, bundle.moved,
        bundle.log_level,
    )  # fmt: skip
    rest = (bundle.places, functions, lots, *flags)
    return pickle.dumps((bundle.version, rest), PROTOCOL)


def unpack_bundle(packed: bytes) -> Bundle:
    """Read a bundle; raises UnpackedError, also for one of another version of Python or of ciel,
    whose functions could fail in any way.
    """
    try:
        version, rest = pickle.loads(packed)
        require_version(version)
        places, functions, lots, *flags = rest
        return Bundle(
            version, places, tuple([Function(*function) for function in functions]),
            tuple([tuple([_call(call) for call in lot]) for lot in lots]), *flags,
        )  # fmt: skip
    except (ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise UnpackedError(f"these are no calls: {error}") from None


def _call(fields: Sequence[Any]) -> Call:
    function, head, buffers, uses, *rest = fields
    uses = tuple([Use(*use) for use in uses])
    return Call(function, Packed(head, buffers), uses, *rest)


def require_version(version: tuple[int, int, str]) -> None:
    """Refuse what another version has packed; raises UnpackedError."""
    if version != VERSION:
        theirs, ours = [f"Python {v[0]}.{v[1]} with ciel {v[2]}" for v in (version, VERSION)]
        raise UnpackedError(
            f"the call was made by {theirs}, and the worker's program is {ours}: both must be "
            "the same; 'python=' names another interpreter"
        )


def arguments_of(packed: bytes | None, inputs: Sequence[Any], python: str = "") -> dict[str, Any]:
    """Return the arguments of a task of executor `python`: the bundle (None: it is the last input),
    and references to its inputs. `python`: the interpreter to run it, by default that of the
    worker.
    """
    arguments: dict[str, Any] = {"inputs": list(inputs)}
    if packed is not None:
        arguments["calls"] = b64encode(packed).decode()
    if python:
        arguments["python"] = python
    return arguments


def bundle_in(arguments: dict[str, Any]) -> Bundle | None:
    """Return the bundle in the arguments of a task; None: it is the last of its inputs."""
    encoded = arguments.get("calls")
    return None if encoded is None else unpack_bundle(b64decode(encoded))


def places_here() -> tuple[str, ...]:
    """Return the directories from which this program's own modules come, in the order of
    `sys.path`; not those of the interpreter and of what is installed with it.
    """
    installed = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    found = [os.path.abspath(place) for place in sys.path if isinstance(place, str)]
    return tuple(dict.fromkeys(place for place in found if not place.startswith(installed)))
