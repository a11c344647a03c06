"""The packed form of Python calls, in which they reach the program that runs them.

One task runs a *bundle* of one or more calls. A bundle consists of *batches*: the outcomes of a
batch are one output of the task (see `contents`). A call is identified by its batch and its place
in the batch.
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
"""A bundle up to this size is part of the task's arguments; a larger one becomes an object."""
LOTS_MAX: Final = 8
"""How many lots a bundle has at most."""

VERSION: Final = (sys.version_info[0], sys.version_info[1], __version__)

AS_VALUE, AS_PATH, AS_STREAM, AS_PARTS = "value", "path", "stream", "parts"
"""How a function receives the result of a future among its arguments: the value itself, the path of
a file that contains it, a stream of it, or an `ObjectElsewhere`, of which it reads parts. It gets
the value instead if that is on its host.
"""


class Use(NamedTuple):
    """A future among the arguments of a call.

    `input`: the number of the task's input that holds the result; -1: another call of the bundle
    produces it, in this `batch`. `place`: the place in the input, or in the batch. `raw`: the
    object is not `contents`, but the bytes that a program wrote. `how`: see `AS_VALUE`.
    """

    input: int
    batch: int
    place: int
    raw: bool
    how: str


class Call(NamedTuple):
    """One call.

    `function`: the number of the function in the bundle. `arguments`: (args, kwargs), packed.
    `with_object`: the number of the input that holds the arguments instead (`contents` with one
    outcome). `uses`: the futures in the arguments, in the order in which they were embedded.
    `is_map`: args are one list of tuples of arguments, and the outcome is a list of results (see
    `Mapped`). `returns`: how many values the function returns, in a tuple or list; each is an
    outcome, at consecutive places. `limit_s`: after this time a map stops before its next row and
    adds an outcome `contents.CUT`; 0: no limit.
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
    """The value of a call with `is_map`.

    `values`: the results before the first row whose call raised. `error`: the exception of that
    row, as `failures.pack_error` returns it, or None.
    """

    values: list[Any]
    error: bytes | None


class Function(NamedTuple):
    """A function: its digest, and its packed form or the number of the input that holds it."""

    digest: bytes
    packed: bytes | None
    input: int = -1


class Bundle(NamedTuple):
    """The calls of one task.

    `batches`: the calls of each lot. `directories`: entries of the client's `sys.path`, for modules
    of the user. `streams`: output 0 is a stream of the items that the only call yields. `raw`:
    output 0 is the value of the only call, bytes or a text, as other programs read it.
    `locals_wanted`: tracebacks show local variables. `timed`: the times of calls are recorded for a
    trace (`contents.Times`). `moved`: the directory ("": unchanged) and the environment variables
    (None: unset) that the client has changed since its job started. `log_level`: the level of the
    client's root logger; 0: the client has not set it.
    """

    version: tuple[int, int, str]
    directories: tuple[str, ...]
    functions: tuple[Function, ...]
    batches: tuple[tuple[Call, ...], ...]
    streams: bool = False
    raw: bool = False
    locals_wanted: bool = False
    timed: bool = False
    moved: tuple[str, dict[str, str | None]] | None = None
    log_level: int = 0


def function_of(packed: bytes) -> Function:
    """Return the `Function` of a packed function."""
    return Function(blake2b(packed, digest_size=16).digest(), packed)


def pack_bundle(bundle: Bundle) -> bytes:
    """Return a bundle as bytes. Buffers are copied, so large arguments belong in an object."""
    batches = [
        [
            (
                call.function, call.arguments.head,
                tuple([bytes(buffer) for buffer in call.arguments.buffers]),
                tuple(map(tuple, call.uses)), call.with_object, call.is_map, call.name,
                call.returns, call.limit_s,
            )
            for call in batch
        ]
        for batch in bundle.batches
    ]  # fmt: skip
    functions = list(map(tuple, bundle.functions))
    flags = (
        bundle.streams, bundle.raw, bundle.locals_wanted, bundle.timed, bundle.moved,
        bundle.log_level,
    )  # fmt: skip
    rest = (bundle.directories, functions, batches, *flags)
    return pickle.dumps((bundle.version, rest), PROTOCOL)


def unpack_bundle(packed: bytes) -> Bundle:
    """Read a bundle; raises UnpackedError.

    A bundle of another version of Python or of ciel is refused: its functions could fail in any
    way.
    """
    try:
        version, rest = pickle.loads(packed)
        require_version(version)
        directories, functions, batches, *flags = rest
        return Bundle(
            version, directories, tuple([Function(*function) for function in functions]),
            tuple([tuple([_call(call) for call in batch]) for batch in batches]), *flags,
        )  # fmt: skip
    except (ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise UnpackedError(f"the arguments of the task are not Python calls: {error}") from None


def _call(fields: Sequence[Any]) -> Call:
    function, head, buffers, uses, *rest = fields
    uses = tuple([Use(*use) for use in uses])
    return Call(function, Packed(head, buffers), uses, *rest)


def require_version(version: tuple[int, int, str]) -> None:
    """Raise UnpackedError if another version of Python or of ciel has packed a bundle."""
    if version != VERSION:
        theirs, ours = [f"Python {v[0]}.{v[1]} with ciel {v[2]}" for v in (version, VERSION)]
        raise UnpackedError(
            f"the call was made by {theirs}, and the worker's program is {ours}: both must be "
            "the same; name another interpreter by the option 'python='"
        )


def arguments_of(packed: bytes | None, inputs: Sequence[Any], python: str = "") -> dict[str, Any]:
    """Return the arguments of a task of the executor `python`.

    `packed`: the bundle; None: it is the last input. `inputs`: references. `python`: the
    interpreter; by default the worker's.
    """
    arguments: dict[str, Any] = {"inputs": list(inputs)}
    if packed is not None:
        arguments["calls"] = b64encode(packed).decode()
    if python:
        arguments["python"] = python
    return arguments


def bundle_in(arguments: dict[str, Any]) -> Bundle | None:
    """Return the bundle in the arguments of a task; None: it is the task's last input."""
    encoded = arguments.get("calls")
    return None if encoded is None else unpack_bundle(b64decode(encoded))


def module_directories() -> tuple[str, ...]:
    """Return the directories of `sys.path` that hold the user's modules.

    Directories of the interpreter and of installed packages are left out.
    """
    installed = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    found = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    return tuple(dict.fromkeys(path for path in found if not path.startswith(installed)))
