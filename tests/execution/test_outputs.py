"""Tests outputs that a program publishes one by one, with a real store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Fixed, Future, Value
from ciel.execution.outputs import ALLOCATED_MAX, BadCallError, Outputs
from ciel.storage.errors import CorruptObjectError, NoSpaceError, ObjectConflictError
from ciel.storage.files import FileStore, open_disk

HERE = frozenset(("here:1",))
SMALL, LARGE = b"x" * 1023, b"x" * 1024


class Made:
    """Outputs of a task `t`, and conflicts with earlier contents."""

    def __init__(self, store: FileStore, *expected: str) -> None:
        self.conflicts: list[ObjectConflictError] = []
        promised = [ObjectId(name) for name in expected]
        self._outputs = Outputs("t", promised, store, HERE, self.conflicts.append)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outputs, name)

    def write(self, index: int, content: bytes) -> None:
        """Open an output, and write to its file as a program does."""
        path = self._outputs.open(index).path
        assert path is not None
        Path(path).write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({}, tmp_path / "store") as store:
        yield store


@pytest.fixture
def made(store: FileStore) -> Made:
    return Made(store, "t:out:0", "t:out:1")


def temporaries(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.glob("store/incoming/*/*") if path.name != "lock"]


# --- numbers --------------------------------------------------------------------------------------


def test_a_single_output_needs_no_number(store: FileStore) -> None:
    assert Made(store, "a").index(None) == 0
    alone = Made(store, "a")
    alone.allocate("")
    assert alone.index(None) == 0


@pytest.mark.parametrize("value", [None, "0", 0.0, True, [0], -1, 2, 10**30])
def test_an_invalid_output_number_is_refused(made: Made, value: object) -> None:
    with pytest.raises(BadCallError):
        made.index(value)


def test_a_wrong_number_is_answered_with_the_right_ones(store: FileStore) -> None:
    with pytest.raises(BadCallError, match=r"no output 1; the only output of the task is 0$"):
        Made(store, "a").index(1)
    with pytest.raises(BadCallError, match=r"no output 0; the task has none$"):
        Made(store).index(0)


def test_output_numbers_start_at_zero(made: Made) -> None:
    assert made.index(1) == 1
    with pytest.raises(BadCallError, match="no output 2; the outputs of the task are 0 to 1"):
        made.index(2)
    assert made.allocate("") == 2
    assert made.index(2) == 2
    with pytest.raises(BadCallError, match="no output 3"):
        made.index(3)


def test_allocated_outputs_are_counted_across_prefixes(made: Made) -> None:
    assert [made.allocate(prefix) for prefix in ("", "cont", "", "obj.x-1")] == [2, 3, 4, 5]
    assert made.ids[2:] == ["t:pub:0", "t:cont:1", "t:pub:2", "t:obj.x-1:3"]
    assert made.expected_count == 2


@pytest.mark.parametrize("prefix", ["a b", "é", "x" * 200, "a/b", "\n"])
def test_a_prefix_that_gives_no_valid_id_is_refused(made: Made, prefix: str) -> None:
    with pytest.raises(BadCallError, match="'prefix'"):
        made.allocate(prefix)
    assert len(made.ids) == 2


def test_an_allocated_output_cannot_have_the_id_of_an_expected_one(made: Made) -> None:
    with pytest.raises(BadCallError, match="t:out:0"):
        made.allocate("out")
    made.allocate("")
    with pytest.raises(BadCallError, match="t:out:1"):
        made.allocate("out")
    made.allocate("")
    assert made.ids[made.allocate("out")] == "t:out:2"


def test_the_number_of_allocated_outputs_is_limited(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.execution.outputs.ALLOCATED_MAX", 3)
    for _ in range(3):
        made.allocate("")
    with pytest.raises(BadCallError, match="at most 3 outputs"):
        made.allocate("")
    assert ALLOCATED_MAX >= 100_000


# --- publishing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", SMALL], ids=len)
def test_a_small_output_becomes_an_inline_value(
    made: Made, store: FileStore, content: bytes, tmp_path: Path
) -> None:
    assert made.publish(0, content) == Value.of(ObjectId("t:out:0"), content)
    made.write(1, content)
    assert made.close(1) == Value.of(ObjectId("t:out:1"), content)
    assert list(store) == []
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("content", [LARGE, os.urandom(300_000)], ids=len)
def test_a_larger_output_is_stored(
    made: Made, store: FileStore, content: bytes, tmp_path: Path
) -> None:
    first = made.publish(0, content)
    made.write(1, content)
    second = made.close(1, len(content))
    assert first == Concrete(ObjectId("t:out:0"), len(content), HERE)
    assert second == Concrete(ObjectId("t:out:1"), len(content), HERE)
    assert store.get("t:out:0") == store.get("t:out:1") == content
    assert temporaries(tmp_path) == []


def test_a_published_output_is_found_by_its_id(made: Made) -> None:
    assert made.reference("t:out:0") is None
    value = made.publish(0, b"x")
    extra = made.publish(made.allocate("e"), LARGE)
    assert made.reference("t:out:0") == value
    assert made.reference("t:e:0") == extra
    assert made.reference("t:out:1") is None
    assert made.reference("other") is None


def test_a_reference_without_content_can_be_published(made: Made) -> None:
    index = made.allocate("fixed")
    made.add(index, Fixed(ObjectId("t:fixed:0"), "here:1"))
    assert made.reference("t:fixed:0") == Fixed(ObjectId("t:fixed:0"), "here:1")
    with pytest.raises(BadCallError, match="published already"):
        made.add(index, Future(ObjectId("t:fixed:0")))


def test_each_output_is_published_once(made: Made) -> None:
    again: Callable[[], Any]
    made.publish(0, b"x")
    for again in (lambda: made.publish(0, b"x"), lambda: made.open(0)):
        with pytest.raises(BadCallError, match="output 0 was published already"):
            again()
    made.write(1, b"x")
    for again in (lambda: made.publish(1, b"x"), lambda: made.open(1)):
        with pytest.raises(BadCallError, match="output 1 is open already"):
            again()
    made.close(1)
    with pytest.raises(BadCallError, match="output 1 is not open"):
        made.close(1)


def test_only_an_open_output_can_be_closed_or_rolled_back(made: Made) -> None:
    for wrong in (made.close, made.roll_back):
        with pytest.raises(BadCallError, match="output 0 is not open"):
            wrong(0)


def test_an_output_shorter_than_its_program_says_is_refused(made: Made, tmp_path: Path) -> None:
    made.write(0, LARGE)
    with pytest.raises(BadCallError, match="has 1024 bytes, but the program reported 1025"):
        made.close(0, 1025)
    assert made.published == {}
    made.roll_back_all()
    assert temporaries(tmp_path) == []


def test_an_output_that_was_rolled_back_may_be_opened_again(
    made: Made, store: FileStore, tmp_path: Path
) -> None:
    made.write(0, b"wrong" * 1000)
    made.roll_back(0)
    assert temporaries(tmp_path) == []
    made.write(0, LARGE)
    made.close(0)
    assert store.get("t:out:0") == LARGE


def test_an_output_that_was_lent_lies_at_the_lender(made: Made) -> None:
    assert made.lend(0, "other:1") == "t:out:0"
    assert made.is_begun(0)
    with pytest.raises(BadCallError, match="output 0 is open already"):
        made.open(0)
    with pytest.raises(BadCallError, match="output 0 is open already"):
        made.lend(0, "third:1")
    found = Concrete(ObjectId("t:out:0"), 9, frozenset({"other:1"}))
    assert made.close(0, 9) == made.reference("t:out:0") == found


def test_an_output_that_was_lent_can_be_rolled_back(made: Made) -> None:
    made.lend(0, "other:1")
    made.roll_back(0)
    assert not made.is_begun(0)
    made.lend(0, "other:1")
    made.roll_back_all()
    assert not made.is_begun(0)


def test_all_open_outputs_can_be_rolled_back_together(made: Made, tmp_path: Path) -> None:
    made.write(0, LARGE)
    made.write(1, LARGE)
    made.roll_back_all()
    assert made.writers == {}
    assert temporaries(tmp_path) == []


def test_the_first_of_two_different_contents_is_kept(made: Made, store: FileStore) -> None:
    store.put("t:out:0", b"first" * 1000)
    ref = made.publish(0, LARGE)
    assert ref == Concrete(ObjectId("t:out:0"), 5000, HERE)
    assert store.get("t:out:0") == b"first" * 1000
    assert [error.object_id for error in made.conflicts] == ["t:out:0"]


def test_the_same_content_again_is_no_conflict(made: Made, store: FileStore) -> None:
    store.put("t:out:0", LARGE)
    made.write(0, LARGE)
    assert made.close(0) == Concrete(ObjectId("t:out:0"), 1024, HERE)
    assert made.conflicts == []


def test_a_removed_output_file_is_a_corrupt_object(made: Made, tmp_path: Path) -> None:
    path = made.open(0).path
    assert path is not None
    os.unlink(path)
    os.mkfifo(path)
    with pytest.raises(CorruptObjectError):
        made.close(0)
    assert made.published == {}
    made.roll_back_all()


def test_an_output_without_room_in_the_store_is_not_published(tmp_path: Path) -> None:
    with open_disk({"capacity": "64KiB"}, tmp_path / "store") as store:
        made = Made(store, "a", "b")
        with pytest.raises(NoSpaceError):
            made.publish(0, bytes(100_000))
        made.write(1, bytes(100_000))
        with pytest.raises(NoSpaceError):
            made.close(1)
        assert made.published == {}
        made.roll_back_all()
        made.publish(0, bytes(50_000))
        assert temporaries(tmp_path) == []
