"""Tests how the chaos driver damages a journal: a reader that loses or invents records is found."""

from __future__ import annotations

import pytest

from benchmarks.chaos import journals
from benchmarks.chaos.journals import Tail
from ciel.core.events import CloseJob
from ciel.core.ids import JobId
from ciel.journal.groups import HEADER, Group, JournalReader, encode_records, seal

SIZE_MAX_BYTES = 400


def journal(groups: int) -> bytes:
    frames = [encode_records([CloseJob(JobId(f"job-{n}"))]) for n in range(groups)]
    return HEADER + b"".join(seal(frame, 1.0) for frame in frames)


def test_every_cut_and_every_flip_of_a_good_reader_is_right() -> None:
    tail = Tail(journal(8), SIZE_MAX_BYTES)
    assert tail.is_whole
    assert all(tail.cut(place) for place in range(len(HEADER), len(tail.data) + 1))
    assert all(tail.flip(bit) for bit in range(len(HEADER) * 8, len(tail.data) * 8))


def test_a_tail_has_only_the_last_groups() -> None:
    data = journal(100)
    tail = Tail(data, SIZE_MAX_BYTES)
    assert len(data) > 2 * len(tail.data) > 2 * SIZE_MAX_BYTES
    assert data.endswith(tail.data[len(HEADER) :])


class Careless(JournalReader):
    """Drops the first group."""

    def groups(self):  # type: ignore[no-untyped-def]  # as the class that it replaces
        yield from [*super().groups()][1:]


class Inventive(JournalReader):
    """Reads a group twice."""

    def groups(self):  # type: ignore[no-untyped-def]  # as the class that it replaces
        for group in super().groups():
            yield group
            yield group


@pytest.mark.parametrize("wrong", [Careless, Inventive])
def test_a_reader_that_loses_or_invents_groups_is_found(
    wrong: type[JournalReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = Tail(journal(8), SIZE_MAX_BYTES)
    assert isinstance(tail.groups[0], Group)
    monkeypatch.setattr(journals, "JournalReader", wrong)
    assert not tail.cut(len(tail.data))
