"""Writes bases of simulated journals, and compares what two masters restore with and without."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from ciel.core.events import Message
from ciel.journal.groups import HEADER, JournalReader, encode_records, seal
from ciel.master.state.compaction import Batch, compact
from ciel.testing.simulator.disk import FakeJournal
from ciel.testing.simulator.masters.chronicle import Chronicle
from ciel.testing.simulator.restored import differences, restore
from ciel.testing.simulator.witness import Violation
from ciel.testing.simulator.world import Process, World


def base_of(content: bytes, now_s: float, chronicle: Chronicle, *, compares: bool) -> bytes:
    """Return the groups of the base that replaces the groups of a journal's files.

    It tells the chronicle. `compares`: raise Violation if a master restores from the base another
    state than from the files.
    """
    batches: list[Batch] = [
        (group.time_s, group.records) for group in JournalReader(HEADER + content).groups()
    ]
    needed = [*compact(lambda: batches)]
    chronicle.compacted(_records(needed), _records(batches))
    if compares:
        whole = restore(_records(batches), now_s)
        for difference in differences(whole, _records(needed), now_s):
            raise Violation("base", f"after a compaction, {difference}")
    return b"".join([seal(encode_records(records), time_s) for time_s, records in needed])


def compact_at_times(world: World[Any], process: Process, journal: FakeJournal) -> None:
    """Compact the journal of a process again and again, if the options say so."""
    options = world.options

    def later() -> None:
        if options.compaction_interval_s:
            process._after(world.mean(options.compaction_interval_s), compact_now)

    def compact_now() -> None:
        base = partial(
            base_of, now_s=world.timeline.now_s, chronicle=world.chronicle,
            compares=not options.lying_share,
        )  # fmt: skip
        journal.compact(base, world.mean(options.compaction_mean_s), later)

    later()


def _records(batches: Iterable[Batch]) -> list[Message]:
    return [record for _, records in batches for record in records]
