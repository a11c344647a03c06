"""The kind of the store `rows`: what ciel asks about it before a store is open."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ciel.storage.errors import StoreSpecError
from ciel.storage.specs import (
    OwnInstances,
    StoreKind,
    WorkerOptions,
    check_instance,
    check_options,
    parse_size,
    share_bytes,
)
from ciel_rows.store import PREFIX, RowStore


def open_rows(options: Mapping[str, str], directory: Path) -> RowStore:
    """Open the store of a worker.

    Options: `capacity` (a size), `place` (a directory for the databases of several workers; the
    worker's own one by default), and `instance` (the name of a database there).
    """
    KIND.check(options)
    capacity = options.get("capacity")
    capacity_bytes = parse_size(capacity) if capacity else None
    if "place" not in options:
        return RowStore(directory, capacity_bytes)
    instance = options.get("instance") or secrets.token_hex(8)
    return RowStore(directory_of(options["place"], instance), capacity_bytes, is_shared=True)


def directory_of(place: str, instance: str) -> Path:
    """Return the directory of an instance."""
    return Path(place, f"{PREFIX}{instance}")


class RowsKind(StoreKind):
    """Describes stores that are not open."""

    def check(self, options: Mapping[str, str]) -> None:
        check_options("rows", options, ("capacity", "place", "instance"))
        if "capacity" in options:
            parse_size(options["capacity"])
        if "instance" in options:
            check_instance(options["instance"])
        place = options.get("place", "/" if "instance" not in options else "")
        if not place.startswith("/"):
            reason = "write a path that begins with /; an instance needs one"
            raise StoreSpecError(f"place={place}", reason)

    def places(self, options: Mapping[str, str]) -> Sequence[str]:
        return (options["place"],) if "place" in options else ()

    def of_workers(self, options: Mapping[str, str], workers: int) -> WorkerOptions:
        if "place" not in options:
            return WorkerOptions(options)
        place = options["place"]
        usual = {"capacity": str(share_bytes(place, workers))}
        return OwnInstances(options, partial(_directories_of, place), usual)


def _directories_of(place: str, instance: str) -> Sequence[Path]:
    return (directory_of(place, instance),)


KIND: Final = RowsKind(open_rows)
