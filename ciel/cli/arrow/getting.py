"""Writes a table of Arrow in an object to a file or to standard output, for `ciel object get`."""

from __future__ import annotations

import pickle
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ciel.cli.jobs.objects import content_of, find_object
from ciel.cli.outcome import UsageError
from ciel.cli.output.files import output_file
from ciel.cli.output.printing import print_json, write_output
from ciel.client.client import Client
from ciel.core.errors import CielError
from ciel.core.refs import Future, Reference
from ciel.python import arrow_tables
from ciel.python.contents import CUT, ERROR, MAGIC, MOVED, STREAM_MAGIC, VALUE, Outcome, decode
from ciel.python.packing import unpack
from ciel.wire.references import from_array

if TYPE_CHECKING:
    import pyarrow

FORMATS: Final = ("parquet", "csv", "arrow", "jsonl")
"""The formats that `ciel.arrow.formats` writes, which needs pyarrow."""
_ERROR_CLASS: Final = 2  # its place in what `failures.pack_error` packs


class NoSuchTableError(CielError):
    """An object, or one of its results, is not a table of Arrow."""


class TableUnreadableError(CielError):
    """The table in an object cannot be loaded here."""


class _OtherError(CielError):
    """An object is not a table of Arrow. The message tells its kind."""


def check_options(args: Namespace) -> None:
    """Check the options of `get` that concern tables; raises UsageError."""
    if args.format is None:
        if args.result is not None:
            raise UsageError("--result selects a table; add --format")
    elif len(args.objects) > 1:
        raise UsageError("--format writes one table; name one object")
    elif args.json and args.output is None:
        raise UsageError("--format with --json needs a file for the table: -o FILE")


def get_table(client: Client, args: Namespace) -> None:
    """Write the table; a file gets its name only when it is complete.

    Raises NoSuchTableError, TableUnreadableError, FormatError, UsageError, NotThereError, and the
    errors of `Client.read` and `Client.ask`.
    """
    facts = find_object(client, args.objects[0])
    object_id, ref = facts["object"], content_of(facts)
    try:
        table = _load(client, _chosen(_outcomes(client, ref), object_id, args.result))
    except _OtherError as error:
        raise NoSuchTableError(f"{object_id} is not a table of Arrow: {error}") from error
    from ciel.arrow.formats import write_table

    if args.output is None:
        write_table(table, args.format, write_output)
        return
    with output_file(Path(args.output)) as file:
        write_table(table, args.format, file.write)
    if args.json:
        row: dict[str, Any] = {"object": object_id, "size_bytes": getattr(ref, "size_bytes", None)}
        print_json(row | {"file": args.output, "format": args.format, "rows": table.num_rows})


def _outcomes(client: Client, ref: Reference) -> list[Outcome]:
    """Return the results in an object, which small calls share.

    A file on this host is mapped; otherwise the content is read into memory. Raises _OtherError,
    and the errors of `Client.read`.
    """
    first = next(client.read_chunks(ref), b"")
    if first.startswith(STREAM_MAGIC):
        raise _OtherError("it is a stream of a Python task; its future yields the items")
    if not first.startswith((MAGIC, arrow_tables.MAGIC)):
        raise _OtherError("it is a file or the output of a program, not a value of Python")
    content: Any = client.map_object(ref)
    if content is None:
        content = bytearray()
        for chunk in client.read_chunks(ref):
            content += chunk
    try:
        return [outcome for outcome in decode(content).outcomes if outcome.kind != CUT]
    except Exception as error:  # a damaged pickle may cause any error
        raise _OtherError("it is damaged, or was written by another version") from error


def _chosen(outcomes: list[Outcome], object_id: str, number: int | None) -> Outcome:
    if number is None:
        if len(outcomes) == 1:
            return outcomes[0]
        raise UsageError(
            f"{object_id} has the results of {len(outcomes)} calls; select one with --result N"
        )
    if number > len(outcomes):
        raise UsageError(f"--result {number}: {object_id} has only {len(outcomes)}")
    return outcomes[number - 1]


def _load(client: Client, outcome: Outcome) -> pyarrow.Table:
    """Return the table of a result, as `result()` of its future does.

    Raises _OtherError, TableUnreadableError, NotThereError, and the errors of `Client.read` and
    `Client.ask`.
    """
    try:
        import pyarrow
    except ImportError:
        raise TableUnreadableError(
            "pyarrow is not installed; pip install 'ciel[arrays]' installs it"
        ) from None
    followed: set[str] = set()
    while outcome.kind == MOVED:  # the task has delegated it to another task
        array, place, is_raw = unpack(outcome.packed.head)
        if is_raw:
            break
        ref = from_array(array)
        if f"{ref.id} {place}" in followed:
            raise _OtherError("its tasks have delegated it to each other")
        followed.add(f"{ref.id} {place}")
        if isinstance(ref, Future):
            ref = content_of(find_object(client, ref.id))
        outcome = _outcomes(client, ref)[place]
    if outcome.kind == ERROR:
        kind = pickle.loads(outcome.packed.head)[_ERROR_CLASS]
        raise _OtherError(f"its function raised {kind}")
    if outcome.kind != VALUE:
        raise _OtherError("it is the output of a program")
    try:
        found = unpack(outcome.packed.head, outcome.packed.buffers)
    except Exception as error:  # a class of the user may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise TableUnreadableError(f"the value cannot be loaded here: {reason}") from error
    if isinstance(found, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([found])
    if not isinstance(found, pyarrow.Table):
        raise _OtherError(f"it is a Python value of type {type(found).__name__}")
    return found
