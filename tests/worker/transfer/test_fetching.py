"""Tests a worker that fetches objects from another worker's real site into its own real store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan, LinkPlan, Plan
from ciel.core.refs import Concrete
from ciel.shm.store import open_shm
from ciel.storage.files import FileStore, open_disk
from ciel.storage.interface import ObjectStore
from ciel.testing.builders import stored
from ciel.testing.data_worker import DataWorker
from ciel.testing.homes import wait_for
from ciel.worker.state.orders import FetchObject
from ciel.worker.transfer.parts import Part
from ciel.worker.transfer.peer_stores import FetchCounts

NOBODY = "127.0.0.1:9"
CONTENT = bytes(range(256)) * 10_000


class Parties:
    """Two workers: the holder of an object, and a fetcher with its own store."""

    def __init__(
        self, in_reactor: Any, own: ObjectStore, held: FileStore, path: Path, *, is_near: bool
    ) -> None:
        self.in_reactor, self.own, self.held = in_reactor, own, held
        self._holder = DataWorker(in_reactor, held, path / "holder" if is_near else None)
        self._fetcher = DataWorker(in_reactor, own, path / "fetcher")
        self.counts = self._fetcher.fetcher.counts
        self.holders_daemon = self._holder.neighbours
        self.holder = self._holder.netloc
        self.received, self.fetcher = self._fetcher.received, self._fetcher.fetcher
        self.timed, self.differing = self._fetcher.timed, self._fetcher.differing

    def fetch(self, ref: Concrete, *plans: Plan) -> tuple[Any, ...]:
        """Fetch an object; return the only report."""
        return self._fetcher.fetch(ref, *plans)

    def ref(self, size_bytes: int | None = len(CONTENT)) -> Concrete:
        return self._holder.has("x", size_bytes)

    def inode(self, store: ObjectStore) -> int:
        with store.open("x") as reader:
            assert reader.path is not None
            return Path(reader.path).stat().st_ino

    def restart_daemon(self, where: Path) -> None:
        """Replace the holder's daemon, as if its worker were restarted at the same address."""
        assert self.holders_daemon is not None
        self.in_reactor(self.holders_daemon.close)
        self._holder.serve_neighbours(where)

    def leave(self) -> None:
        self._fetcher.leave()
        self._holder.leave()


Make = Callable[..., Parties]


@pytest.fixture
def make(in_reactor: Any, store: FileStore, tmp_path: Path) -> Iterator[Make]:
    """Create pairs of workers. `is_near`: the holder's store has a daemon on the same host. The
    options are for the fetcher's store.
    """
    made: list[tuple[Parties, ObjectStore]] = []

    def make(*, is_near: bool = True, own: ObjectStore | None = None, **options: str) -> Parties:
        own = own or open_disk(options, tmp_path / "own")
        store.put("x", CONTENT)
        made.append((Parties(in_reactor, own, store, tmp_path, is_near=is_near), own))
        return made[-1][0]

    yield make
    for parties, own in made:
        parties.leave()
        assert [p for p in (tmp_path / "own/incoming").glob("*/*") if p.name != "lock"] == []
        own.close()


# --- second results -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "second, differs", [(CONTENT, False), (CONTENT[:-1] + b"!", True), (b"", True)]
)
def test_a_second_result_is_compared_although_it_is_deleted_at_once(
    make: Make, store: FileStore, second: bytes, differs: bool
) -> None:
    parties = make()
    store.checksum("x")
    parties.own.put("x", second)

    def compare_and_delete() -> Any:
        refs = (stored("x", NOBODY, parties.holder), stored("unknown", parties.holder))
        compared = parties.fetcher.comparisons.compare(refs)
        parties.own.delete("x")
        return compared

    parties.in_reactor(compare_and_delete)
    assert parties.differing == (["x"] if differs else [])


# --- parts ----------------------------------------------------------------------------------------

PARTS = [Part(1000, 2000), Part(len(CONTENT) - 5, 5), Part(0, 1)]


def copied_parts(parties: Parties, path: Path, *plans: Plan) -> tuple[bool, bytes]:
    """Copy parts into a new file; return whether that succeeded, and the content of the file."""
    ref = parties.ref()
    with path.open("wb") as file:
        copy = parties.fetcher.parts.copy
        found = parties.in_reactor(copy, ref, plans, PARTS, file.fileno())
    return found, path.read_bytes()


def test_parts_are_copied_where_they_belong(make: Make, tmp_path: Path) -> None:
    parties = make(is_near=False)
    plans = HttpPlan(NOBODY), HttpPlan(parties.holder)
    found, content = copied_parts(parties, tmp_path / "parts", *plans)
    assert found
    expected = bytearray(len(CONTENT))
    for offset, size_bytes in PARTS:
        expected[offset : offset + size_bytes] = CONTENT[offset : offset + size_bytes]
    assert content == expected
    assert parties.counts == FetchCounts(parts=3, part_bytes=2006)
    assert parties.own.stat("x") is None


def test_an_object_that_no_worker_sends_in_parts_is_to_be_copied_as_a_whole(
    make: Make, tmp_path: Path
) -> None:
    parties = make(is_near=False)
    assert copied_parts(parties, tmp_path / "parts") == (False, b"")
    assert copied_parts(parties, tmp_path / "parts", LinkPlan(parties.holder)) == (False, b"")
    assert copied_parts(parties, tmp_path / "parts", HttpPlan(NOBODY)) == (False, b"")
    parties.held.delete("x")
    assert copied_parts(parties, tmp_path / "parts", HttpPlan(parties.holder)) == (False, b"")
    assert parties.counts == FetchCounts()


# --- whole objects --------------------------------------------------------------------------------


def test_on_one_host_the_object_is_linked(make: Make) -> None:
    parties = make()
    told = parties.fetch(parties.ref(), LinkPlan(parties.holder), HttpPlan(NOBODY))
    assert told == ("x", len(CONTENT))
    assert parties.inode(parties.own) == parties.inode(parties.held)
    assert parties.counts == FetchCounts(asked=1, linked=1)
    assert parties.holders_daemon is not None
    assert parties.holders_daemon.figures()["served"] == 1


def test_on_one_host_what_cannot_be_linked_is_copied_without_a_server(
    make: Make, tmp_path: Path
) -> None:
    parties = make(own=open_shm({"spill": "no"}, tmp_path / "own"))  # another file system
    assert parties.fetch(parties.ref(), LinkPlan(parties.holder)) == ("x", len(CONTENT))
    assert parties.own.get("x") == CONTENT
    assert parties.own.checksum("x") == parties.held.checksum("x")
    assert parties.counts == FetchCounts(asked=1, copied=1, copied_bytes=len(CONTENT))


def test_a_damaged_file_is_neither_linked_nor_sent(make: Make) -> None:
    """The request by HTTP makes the holder find the damage, too."""
    parties = make()
    parties.held.checksum("x")
    with parties.held.open("x") as reader:
        path = Path(reader.path)
    path.chmod(0o600)
    path.write_bytes(CONTENT[:-1] + b"?")
    path.chmod(0o400)
    plans = LinkPlan(parties.holder), HttpPlan(parties.holder)
    object_id, losses, details = parties.fetch(parties.ref(), *plans)
    assert (object_id, losses) == ("x", (parties.holder,))
    assert "(by a link): its file is damaged" in details
    assert parties.own.stat("x") is None
    assert parties.held.stat("x") is None


@pytest.mark.parametrize("is_near", [True, False])
def test_a_stale_copy_in_the_own_store_is_replaced(make: Make, is_near: bool) -> None:
    parties = make(is_near=is_near)
    parties.own.put("x", CONTENT[::-1])
    plan = LinkPlan(parties.holder) if is_near else HttpPlan(parties.holder)
    assert parties.fetch(parties.ref(), plan) == ("x", len(CONTENT))
    assert parties.own.get("x") == CONTENT
    assert parties.fetch(parties.ref(), plan) == ("x", len(CONTENT))  # an equal copy is kept


def test_a_neighbour_may_be_silent_until_its_end_and_its_heir_is_asked(
    make: Make, tmp_path: Path
) -> None:
    parties = make()
    parties.fetch(parties.ref(), LinkPlan(parties.holder))
    parties.own.delete("x")
    parties.restart_daemon(tmp_path / "holder")
    told = parties.fetch(parties.ref(), LinkPlan(parties.holder))
    assert told == ("x", len(CONTENT))
    assert parties.counts == FetchCounts(asked=2, linked=2)


def test_a_neighbours_object_of_another_size_is_none(make: Make) -> None:
    parties = make()
    _, losses, details = parties.fetch(parties.ref(len(CONTENT) + 1), LinkPlan(parties.holder))
    assert losses == ()
    assert f"{len(CONTENT)} bytes, not {len(CONTENT) + 1}" in details
    assert list(parties.own) == []


@pytest.mark.parametrize("size_bytes", [None, len(CONTENT)])
def test_from_another_host_the_object_is_copied(make: Make, size_bytes: int | None) -> None:
    parties = make()
    told = parties.fetch(parties.ref(size_bytes), HttpPlan(parties.holder))
    assert told == ("x", len(CONTENT))
    assert parties.own.get("x") == CONTENT
    assert parties.inode(parties.own) != parties.inode(parties.held)


@pytest.mark.parametrize("plan", [LinkPlan, HttpPlan])
def test_it_tells_how_long_a_copy_took_and_from_where(
    make: Make, plan: Callable[..., Plan]
) -> None:
    parties = make()
    parties.fetch(parties.ref(), plan(parties.holder))
    ((netloc, size_bytes, run_s),) = parties.timed
    assert (netloc, size_bytes) == (parties.holder, len(CONTENT))
    assert 0 < run_s < 60


def test_what_may_have_waited_for_its_maker_is_not_timed(make: Make) -> None:
    parties = make()
    parties.fetch(parties.ref(None), HttpPlan(parties.holder))
    assert parties.timed == []


def test_a_link_that_is_refused_is_no_loss_and_the_copy_follows(make: Make) -> None:
    parties = make(is_near=False)
    plans = (LinkPlan(parties.holder), HttpPlan(parties.holder))
    assert parties.fetch(parties.ref(), *plans) == ("x", len(CONTENT))
    assert parties.own.get("x") == CONTENT
    assert parties.counts == FetchCounts(asked=1, link_failed=1, http=1, http_bytes=len(CONTENT))


@pytest.mark.requirement("CIB-3")
def test_the_next_holder_is_asked_when_one_is_gone(make: Make) -> None:
    parties = make()
    told = parties.fetch(parties.ref(), HttpPlan(NOBODY), HttpPlan(parties.holder))
    assert told == ("x", len(CONTENT))


@pytest.mark.requirement("CIB-3")
def test_when_no_plan_works_every_place_and_reason_is_told(make: Make) -> None:
    parties = make()
    parties.held.delete("x")
    plans = (LinkPlan(parties.holder), HttpPlan(parties.holder), HttpPlan(NOBODY))
    object_id, losses, details = parties.fetch(parties.ref(), *plans)
    assert (object_id, losses) == ("x", (parties.holder, NOBODY))
    assert f"{parties.holder} (by a link)" in details
    assert f"{parties.holder} (by HTTP)" in details
    assert "no object x" in details
    assert "no such object here" in details
    assert f"{NOBODY} (by HTTP)" in details
    assert list(parties.own) == []


def test_without_a_plan_all_places_that_were_said_are_lost(make: Make) -> None:
    parties = make()
    _, losses, details = parties.fetch(stored("x", "b:2", "a:1"))
    assert losses == ("a:1", "b:2")
    assert "no registered worker" in details


@pytest.mark.parametrize("size_bytes", [1, len(CONTENT) + 1])
def test_an_object_of_another_size_is_none(make: Make, size_bytes: int) -> None:
    parties = make()
    _, losses, _ = parties.fetch(parties.ref(size_bytes), HttpPlan(parties.holder))
    assert losses == (parties.holder,)
    assert list(parties.own) == []


@pytest.mark.parametrize("size_bytes", [None, len(CONTENT)])
def test_no_room_here_is_no_loss_there(make: Make, size_bytes: int | None) -> None:
    parties = make(capacity="64KiB")
    _, losses, details = parties.fetch(parties.ref(size_bytes), HttpPlan(parties.holder))
    assert losses == ()
    assert "space" in details
    assert list(parties.own) == []


@pytest.mark.parametrize("plan, count", [(HttpPlan, 40), (LinkPlan, 200)])
def test_many_at_once_all_come(make: Make, plan: type[Plan], count: int) -> None:
    parties = make()
    names = [f"o{number}" for number in range(count)]
    for name in names:
        parties.held.put(name, name.encode() * 1000)

    def fetch_all() -> None:
        for name in names:
            ref = Concrete(ObjectId(name), None, frozenset((parties.holder,)))
            parties.fetcher.fetch(FetchObject(ref, (plan(parties.holder),)))

    parties.in_reactor(fetch_all)
    wait_for(lambda: len(parties.received) == count, "all of them")
    assert sorted(parties.own) == sorted(names)
    assert {parties.own.get(name) == name.encode() * 1000 for name in names} == {True}
