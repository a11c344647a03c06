"""The volumes and memory servers that the records of a journal describe.

Every record replaces what an earlier one says about the same volume, server or extent, so the
table is the state. `records` returns a shortest sequence of records that gives the same table.
"""

from __future__ import annotations

from typing import Final

from ciel.core.events import (
    ExtentPlaced,
    ExtentsPlaced,
    MemoryServerLeft,
    MemoryServerSeen,
    VolumeCreated,
    VolumeRecord,
    VolumeRemoved,
)

EXTENTS_PER_RECORD: Final = 4096
"""A record with so many decisions has about 100 KB."""


class VolumeTable:
    """Volumes and servers, by number, and the latest decision about each extent."""

    def __init__(self) -> None:
        self.servers: dict[int, MemoryServerSeen] = {}
        self.volumes: dict[int, VolumeCreated] = {}
        self.extents: dict[int, dict[int, ExtentPlaced]] = {}  # by volume and extent
        self.last_volume = 0
        """The greatest number that a volume ever had."""

    def apply(self, record: VolumeRecord) -> None:
        """Apply a record; decisions about a volume that was removed have no effect."""
        match record:
            case VolumeCreated(number):
                self.volumes[number] = record
                self.extents[number] = {}
                self.last_volume = max(self.last_volume, number)
            case VolumeRemoved(number):
                self.volumes.pop(number, None)
                self.extents.pop(number, None)
                self.last_volume = max(self.last_volume, number)
            case MemoryServerSeen():
                self.servers[record.number] = record
            case MemoryServerLeft(number):
                self.servers.pop(number, None)
            case ExtentsPlaced(volume, extents):
                if volume in self.extents:
                    self.extents[volume] |= {placed.extent: placed for placed in extents}

    def records(self) -> list[VolumeRecord]:
        """Return records that give this table."""
        records: list[VolumeRecord] = [*self.servers.values(), *self.volumes.values()]
        for volume, extents in self.extents.items():
            records += placed_records(volume, list(extents.values()))
        if self.last_volume not in self.volumes and self.last_volume:
            records.append(VolumeRemoved(self.last_volume))
        return records


def placed_records(volume: int, extents: list[ExtentPlaced]) -> list[VolumeRecord]:
    """Return records with decisions about extents of a volume, each of a limited size."""
    return [
        ExtentsPlaced(volume, tuple(extents[start : start + EXTENTS_PER_RECORD]))
        for start in range(0, len(extents), EXTENTS_PER_RECORD)
    ]
