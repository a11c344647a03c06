"""Writes a bundle of calls as the arguments of one task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ciel.client.calls import bundling
from ciel.client.calls.arguments import Inputs
from ciel.client.calls.job import JobOfCalls
from ciel.client.calls.pending import PendingCall
from ciel.client.calls.session import Session
from ciel.client.jobs.caller_context import log_level
from ciel.core.refs import Reference
from ciel.core.tasks import Needs
from ciel.python import calls
from ciel.python.contents import VALUE, Outcome

ALONE_MIN_BYTES: Final = 64 << 10
"""Larger arguments of a call are stored as a separate object."""


class BundleTask(NamedTuple):
    """A task that runs a bundle.

    The task has one output for each of the `lots`, the groups of calls whose results are stored in
    one object. No other task reads the inputs `for_once`, so they can be released after this task.
    It reads only parts of the inputs `in_parts`.
    """

    name: str
    arguments: dict[str, Any]
    lots: list[list[PendingCall]]
    needs: Needs
    sees_errors: bool
    for_once: list[Reference]
    in_parts: list[Reference]


class BundleWriter:
    """Writes the tasks of one client's calls. Not thread-safe."""

    def __init__(
        self,
        session: Session,
        job: JobOfCalls,
        is_traced: Callable[[], bool],
        *,
        locals_wanted: bool,
    ) -> None:
        self._session = session
        self._job = job
        self._is_traced = is_traced
        self._locals_wanted = locals_wanted
        # The directories for modules, and the value of sys.path for which they were computed.
        self._module_paths: tuple[tuple[str, ...], list[str]] = ((), [])

    def write(self, bundle: list[PendingCall]) -> BundleTask:
        """Return the task of a bundle. Set the lot and the position in the lot of each call.

        Raises ClientError, and the error of a future in the arguments that was never sent.
        """
        lots = bundling.lots_of(bundle)
        for number, lot in enumerate(lots):
            position = 0
            for call in lot:
                call.lot, call.place = number, position
                position += len(call.futures)
        inputs = Inputs()
        numbers: dict[bytes, int] = {}
        functions: list[calls.Function] = []
        written: list[tuple[calls.Call, ...]] = []
        for lot in lots:
            row = []
            for call in lot:
                function = call.function
                digest = function.function.digest
                if digest not in numbers:
                    numbers[digest] = len(functions)
                    at = -1 if function.ref is None else inputs.number(function.ref)
                    functions.append(function.function._replace(input=at))
                row.append(self._written(call, numbers[digest], inputs))
            written.append(tuple(row))
        first = bundle[0]
        sent = calls.Bundle(
            calls.VERSION, self._module_directories(), tuple(functions), tuple(written),
            first.streams, first.raw, self._locals_wanted, self._is_traced(),
            self._job.caller.moved(), log_level(),
        )  # fmt: skip
        packed: bytes | None = calls.pack_bundle(sent)
        if len(packed or b"") > calls.INLINE_MAX_BYTES:
            ref = self._session.upload_content(packed or b"", "calls")
            inputs.number(ref, is_for_once=True)
            packed = None
        name = first.function.name
        needs = first.options.needs
        if len(bundle) > 1:
            name = f"{len(bundle)} calls of {name}{'' if len(functions) == 1 else ' and others'}"
            needs = needs._replace(retries=1)
        arguments = calls.arguments_of(packed, inputs.refs, first.options.python)
        sees_errors = len(bundle) > 1 and bool(inputs.refs)
        return BundleTask(
            name, arguments, lots, needs, sees_errors, inputs.for_once, inputs.in_parts
        )

    def _written(self, call: PendingCall, function: int, inputs: Inputs) -> calls.Call:
        uses = tuple([_use(future, inputs) for future in call.taken])
        arguments, with_object = call.arguments, -1
        if call.size_bytes > ALONE_MIN_BYTES or (
            arguments.buffers and arguments.size_bytes > ALONE_MIN_BYTES
        ):
            name = f"the arguments of {call.function.name}"
            ref = self._job.store([Outcome(VALUE, arguments)], name)
            arguments = arguments._replace(head=b"", buffers=())
            with_object = inputs.number(ref, is_for_once=True)
        name, returns = call.function.name, call.options.returns
        limit_s = bundling.PART_S if call.is_divisible else 0.0
        return calls.Call(
            function, arguments, uses, with_object, call.is_map, name, returns, limit_s
        )

    def _module_directories(self) -> tuple[str, ...]:
        directories, path = self._module_paths
        if path != sys.path:
            directories = calls.module_directories()
            self._module_paths = (directories, list(sys.path))
        return directories


def _use(future: Any, inputs: Inputs) -> calls.Use:
    how, pending = getattr(future, "how", calls.AS_VALUE), future.pending_call
    if pending is not None and pending.lot >= 0:  # a call of this bundle
        position = pending.place + future.place
        return calls.Use(-1, pending.lot, position, False, how)
    lot = future.lot
    if lot is None:  # its call could not be sent
        raise future.unsent_error()
    if lot.is_stream and how == calls.AS_VALUE:
        how = calls.AS_STREAM
    number = inputs.number(lot.ref, in_parts=how == calls.AS_PARTS)
    return calls.Use(number, 0, future.place, lot.raw, how)
