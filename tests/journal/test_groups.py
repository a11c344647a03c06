"""Tests the format of a journal: cut at every byte, with flipped bits, and damaged on purpose."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.events import (
    AddTask,
    CancelJob,
    CloseJob,
    Heartbeat,
    MasterStarted,
    Message,
    SubmitJob,
    WorkerLeft,
    WorkerSeen,
)
from ciel.core.ids import JobId
from ciel.core.jobs import JobSpec
from ciel.journal.groups import (
    BODY_MAX_BYTES,
    HEADER,
    JournalReader,
    encode_records,
    seal,
)
from ciel.testing.builders import a_task
from ciel.wire.errors import LocalProtocolError

JOB = JobSpec(JobId("job-1"), "a job", True, True, False)
GROUPS: list[list[Message]] = [
    [MasterStarted(1, "1.0"), WorkerSeen("w1", "127.0.0.1:9001")],
    [SubmitJob(JOB), AddTask(a_task("a"), ()), AddTask(a_task("b"), ())],
    [CloseJob(JOB.id)],
    [CancelJob(JOB.id, "x" * 2000), WorkerLeft("w1")],
]
TIME_S = 1_700_000_000.25


def written(groups: list[list[Message]] = GROUPS) -> bytes:
    return HEADER + b"".join(seal(encode_records(group), TIME_S) for group in groups)


def read(data: bytes) -> tuple[list[list[Message]], JournalReader]:
    reader = JournalReader(data)
    return [group.records for group in reader.groups()], reader


def test_what_was_written_is_read() -> None:
    data = written()
    groups, reader = read(data)
    assert groups == GROUPS
    assert (reader.damage, reader.good_bytes) == (None, len(data))
    assert [group.time_s for group in JournalReader(data).groups()] == [TIME_S] * len(GROUPS)


def test_several_appends_make_one_group() -> None:
    appends = b"".join(encode_records(group) for group in GROUPS)
    groups, _ = read(HEADER + seal(appends, TIME_S))
    assert groups == [[record for group in GROUPS for record in group]]


def test_a_journal_cut_at_any_byte_keeps_exactly_the_whole_groups() -> None:
    data = written()
    ends = [len(HEADER)]
    for group in JournalReader(data).groups():
        ends.append(group.offset + group.size_bytes)
    for size_bytes in range(len(data)):
        groups, reader = read(data[:size_bytes])
        whole = sum(end <= size_bytes for end in ends) - 1
        assert groups == GROUPS[: max(whole, 0)]
        assert reader.good_bytes == (ends[whole] if whole >= 0 else 0)
        if size_bytes not in (0, *ends):
            assert reader.damage is not None
            assert reader.damage.is_tail
            assert not reader.is_foreign


def test_any_flipped_bit_ends_the_journal_before_its_group() -> None:
    data = written()
    starts = [group.offset for group in JournalReader(data).groups()]
    for bit in range(len(HEADER) * 8, len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        groups, reader = read(bytes(flipped))
        hit = sum(start <= bit // 8 for start in starts) - 1
        assert groups == GROUPS[:hit]
        assert reader.damage is not None
        assert reader.damage.offset == starts[hit]
        assert reader.damage.is_tail == (hit == len(GROUPS) - 1)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_without_an_exception(data: bytes, has_header: bool) -> None:
    groups, reader = read(HEADER + data if has_header else data)
    assert reader.good_bytes <= len(HEADER) + len(data)
    assert not groups or has_header


@pytest.mark.parametrize(
    "start, says",
    [
        (b"ciel journal 2\n\0", "the file has version 2, and this version of ciel reads version 1"),
        (b"#!/bin/sh\n       ", "the file is not a journal"),
    ],
)
def test_a_file_of_another_kind_is_named(start: bytes, says: str) -> None:
    groups, reader = read(start + b"rest")
    assert not groups
    assert reader.is_foreign
    assert reader.damage is not None
    assert reader.damage.reason == says


def group_of(body: bytes, flag: int) -> bytes:
    checksum = zlib.crc32(body, zlib.crc32(struct.pack(">QB", 5, flag)))
    return struct.pack(">4sIIQB", b"CJg1", len(body), checksum, 5, flag) + body


@pytest.mark.parametrize(
    "group, says",
    [
        (group_of(b"\0" * 9, 0), "the group cannot be read"),
        (group_of(b"nothing compressed", 1), "cannot be decompressed"),
        (group_of(zlib.compress(b"\0" * (BODY_MAX_BYTES + 1)), 1), "or ends too early"),
        (group_of(zlib.compress(b"abc" * 99)[:-9], 1), "or ends too early"),
        (group_of(encode_records(GROUPS[0])[:-1], 0), "its last frame is cut off"),
    ],
)
def test_a_group_with_a_right_checksum_and_wrong_content_is_damage(group: bytes, says: str) -> None:
    _, reader = read(HEADER + group)
    assert reader.damage is not None
    assert says in reader.damage.reason


def test_other_messages_are_no_records() -> None:
    with pytest.raises(LocalProtocolError, match="a Heartbeat is not a record of the journal"):
        encode_records([Heartbeat()])


def test_random_damage_invents_no_records() -> None:
    chance = random.Random(5)
    data = written(GROUPS * 5)
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 20)):
            damaged[chance.randrange(len(HEADER), len(data))] = chance.randrange(256)
        groups, _ = read(bytes(damaged))
        assert groups == (GROUPS * 5)[: len(groups)]
