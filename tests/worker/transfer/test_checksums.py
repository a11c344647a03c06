"""Tests that checksums are computed for new objects, and that readers do not get damaged ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Reference, Value
from ciel.storage.digests import ATTRIBUTE
from ciel.storage.files import FileStore
from ciel.storage.interface import Verify
from ciel.testing.homes import wait_for
from ciel.worker.checksums import SMALL_BYTES, Checksums

SMALL = b"small" * 100
LARGE = b"large" * SMALL_BYTES


def by_program(store: FileStore, object_id: str, content: bytes) -> Concrete:
    """Commit an object that a program has written, so that its checksum is not known."""
    with store.begin(object_id) as writer:
        assert writer.path is not None
        Path(writer.path).write_bytes(content)
        writer.commit()
    return Concrete(ObjectId(object_id), len(content), frozenset(("here:1",)))


def damage(store: FileStore, object_id: str) -> str:
    """Change the last byte of an object's file, and return the file's path."""
    with store.open(object_id) as reader:
        path = Path(reader.path)
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    path.chmod(0o400)
    return str(path)


class Lab:
    """The checksums of one store, and the objects that were reported as damaged."""

    def __init__(self, run: Any, store: FileStore, verify: Verify) -> None:
        self.run, self.store = run, store
        self.checksums = Checksums(run.reactor, store, verify)
        self.damaged: list[str] = []
        self.checksums.damaged = self.damaged.append

    def verify(self, *refs: Reference) -> list[str] | None:
        """Verify objects; return the damaged ones, or None if nothing was verified."""
        found: list[Any] = []

        def begin() -> bool:
            waiting = self.checksums.verify(refs)
            if waiting is not None:
                waiting.addCallback(found.append)
            return waiting is not None

        if not self.run(begin):
            return None
        wait_for(lambda: found, "the verification")
        return sorted(found[0])

    def committed(self, *refs: Concrete) -> None:
        """Report new objects, and wait until their checksums are known."""
        self.run(self.checksums.committed, refs)
        wait_for(lambda: all(map(self.is_known, refs)), "checksums")

    def is_known(self, ref: Concrete) -> bool:
        """Whether the checksum of an object is known."""
        info = self.store.stat(ref.id)
        return info is not None and info.checksum is not None


@pytest.fixture(params=list(Verify))
def lab(request: Any, in_reactor: Any, store: FileStore) -> Lab:
    return Lab(in_reactor, store, request.param)


def the(mode: Verify) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lab", [mode], indirect=True)


FIRST, ALWAYS, NEVER = the(Verify.FIRST), the(Verify.ALWAYS), the(Verify.NEVER)


@FIRST
@pytest.mark.parametrize("content", [SMALL, LARGE])
def test_a_damaged_object_is_deleted_and_reported(lab: Lab, content: bytes) -> None:
    good, bad = by_program(lab.store, "good", content), by_program(lab.store, "bad", content)
    lab.committed(good, bad)
    damage(lab.store, "bad")
    assert lab.verify(good, bad) == ["bad"] == lab.damaged
    assert lab.store.stat("bad") is None
    assert lab.store.get("good") == content


@FIRST
def test_an_object_is_verified_when_it_is_first_read(lab: Lab) -> None:
    ref = by_program(lab.store, "x", LARGE)
    lab.committed(ref)
    assert lab.verify(ref) == []
    damage(lab.store, "x")
    assert lab.verify(ref) is None  # nothing was read


@FIRST
def test_an_object_of_the_same_name_is_verified_again(lab: Lab) -> None:
    ref = by_program(lab.store, "x", LARGE)
    lab.committed(ref)
    assert lab.verify(ref) == []
    lab.store.delete("x")
    lab.checksums.forget("x")
    lab.committed(by_program(lab.store, "x", LARGE))
    damage(lab.store, "x")
    assert lab.verify(ref) == ["x"]


@ALWAYS
def test_an_object_is_verified_each_time(lab: Lab) -> None:
    ref = by_program(lab.store, "x", LARGE)
    lab.committed(ref)
    assert lab.verify(ref) == []
    damage(lab.store, "x")
    assert lab.verify(ref) == ["x"]


@NEVER
def test_without_verification_nothing_is_read(lab: Lab) -> None:
    ref = by_program(lab.store, "x", LARGE)
    lab.run(lab.checksums.committed, [ref])
    path = damage(lab.store, "x")
    assert lab.verify(ref) is None
    assert ATTRIBUTE not in os.listxattr(path)


@FIRST
def test_readers_of_the_same_object_wait_for_one_verification(lab: Lab) -> None:
    refs = [by_program(lab.store, name, LARGE) for name in ("a", "b", "c")]
    lab.committed(*refs)
    damage(lab.store, "b")
    found: list[Any] = []

    def begin() -> None:
        for wanted in (refs, refs[1:2], refs[::-1]):
            waiting = lab.checksums.verify(wanted)
            assert waiting is not None
            waiting.addCallback(found.append)

    lab.run(begin)
    wait_for(lambda: len(found) == 3, "three readers")
    assert found == [frozenset("b")] * 3
    assert lab.damaged == ["b"]


@FIRST
def test_a_new_object_can_be_read_before_its_checksum_is_known(lab: Lab) -> None:
    ref = by_program(lab.store, "x", LARGE)
    assert lab.verify(ref) == []
    lab.committed(ref)
    damage(lab.store, "x")
    assert lab.verify(ref) == ["x"]  # it has not been verified yet


@FIRST
def test_values_and_missing_objects_are_left_to_their_readers(lab: Lab) -> None:
    missing = Concrete(ObjectId("missing"), 5, frozenset(("here:1",)))
    assert lab.verify(Value.of(ObjectId("v"), b"value")) is None
    assert lab.verify(missing) == []
    assert lab.damaged == []


def test_only_objects_that_are_opened_then_stay_where_they_are(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other objects would stay in memory for nothing, and programs would lack the space."""
    expected: list[str] = []

    def expect(object_id: str) -> bool:
        expected.append(object_id)
        return True

    monkeypatch.setattr(lab.store, "expect", expect)
    ref = by_program(lab.store, "x", SMALL)
    lab.verify(ref)
    assert expected == ["x"]
    lab.run(lambda: lab.checksums.verify((ref,), are_opened=False))
    assert expected == ["x"]
