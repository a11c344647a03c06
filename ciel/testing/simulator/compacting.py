"""Writes bases of simulated journals, and compares what two masters restore with and without."""

from __future__ import annotations

from collections.abc import Iterable

from ciel.core.events import Message
from ciel.journal.groups import HEADER, JournalReader, encode_records, seal
from ciel.master.state.compaction import Batch, compact
from ciel.testing.simulator.restored import differences, restore
from ciel.testing.simulator.witness import Violation


def base_of(content: bytes, now_s: float, *, compares: bool) -> bytes:
    """Return the groups of the base that replaces the groups of a journal's files.

    `compares`: raise Violation if a master restores from the base another state than from the
    files.
    """
    batches: list[Batch] = [
        (group.time_s, group.records) for group in JournalReader(HEADER + content).groups()
    ]
    needed = [*compact(lambda: batches)]
    if compares:
        whole = restore(_records(batches), now_s)
        for difference in differences(whole, _records(needed), now_s):
            raise Violation("base", f"after a compaction, {difference}")
    return b"".join([seal(encode_records(records), time_s) for time_s, records in needed])


def _records(batches: Iterable[Batch]) -> list[Message]:
    return [record for _, records in batches for record in records]
