"""Daemons that find each other, and that join, leave, stop and die during requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.scc.store import open_scc
from ciel.shm.client import ShmdClient
from ciel.shm.credentials import own_prefix
from ciel.shm.daemon import Daemon, neighbour
from ciel.shm.errors import DaemonGoneError, RequestFailedError, RequestTimeoutError, ShmdError
from ciel.shm.layout import member_of_store
from ciel.shm.peers import listed
from ciel.shm.requests import SLOW_MAX
from ciel.storage.errors import ObjectNotFoundError
from ciel.storage.files import FileReader, FileStore, open_disk
from ciel.storage.interface import ObjectInfo
from ciel.storage.sharing import PeerObject, PeerStoreError, copy_in, link
from ciel.storage.shelf import ShelfOptions
from ciel.testing.homes import wait_for
from ciel_tests.clusters.block_stores import BlockStores

CONTENT = bytes(range(256)) * 300


def members(stores: BlockStores) -> set[str]:
    return listed(own_prefix(stores.group))


def names(stores: BlockStores, *stores_names: str) -> set[str]:
    return {member_of_store(str((stores.path / name).resolve())) for name in stores_names}


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.requirement("CIB-14")
def test_siblings_are_known_at_once_whether_they_come_stop_or_are_killed(
    stores: BlockStores,
) -> None:
    stores.start("a", "b", "c")
    assert members(stores) == names(stores, "a", "b", "c")
    stores.make(stores.client("c"), "x", CONTENT)
    client = stores.client("a")

    stores.stop("b")  # delays only what nobody else has
    assert Path(client.load("x")).read_bytes() == CONTENT
    (stopped,) = names(stores, "b")
    with pytest.raises(RequestTimeoutError, match=f"waiting for its peers .*{stopped}: no answer"):
        client.load("nowhere", timeout_s=0.3)

    stores.kill("b")
    assert members(stores) == names(stores, "a", "c")
    stores.kill("c")
    with pytest.raises(RequestFailedError, match=r"neither in this store nor in another$"):
        client.load("y")


@pytest.mark.requirement("CIB-14")
@pytest.mark.slow
def test_daemons_that_come_go_and_are_killed_under_load_cost_errors_only(
    stores: BlockStores,
) -> None:
    stores.start("a", "b")
    over = threading.Event()
    good: list[str] = []
    errors: list[Exception] = []

    def ask(who: str) -> None:
        """Make something here and load it over there, again and again."""
        other = "b" if who == "a" else "a"
        number = 0
        with (
            ShmdClient(stores.path / who, timeout_s=20) as here,
            ShmdClient(stores.path / other, timeout_s=20) as there,
        ):
            while not over.is_set():
                number += 1
                name = f"{who}{number}"
                try:
                    stores.make(here, name, name.encode())
                    assert Path(there.load(name)).read_bytes() == name.encode()
                    good.append(name)
                except (ShmdError, OSError) as error:
                    errors.append(error)

    threads = [threading.Thread(target=ask, args=(who,)) for who in ("a", "b", "a", "b")]
    for thread in threads:
        thread.start()
    stores.start("c")
    stores.kill("b")
    wait_for(lambda: errors, "an error")
    stores.start("b")
    stores.kill("c")
    count = len(good)
    wait_for(lambda: len(good) >= count + 10, "loads that go well")
    over.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    kinds = {type(error) for error in errors}
    assert kinds <= {DaemonGoneError, RequestFailedError, FileNotFoundError}
    assert DaemonGoneError in kinds
    incoming = [Path(stores.client(who).write("last")).parent for who in ("a", "b")]
    wait_for(lambda: sum(len([*path.iterdir()]) for path in incoming) == 2, "none but these")


# --- in this process ------------------------------------------------------------------------------


class Held(FileStore):
    """A store on a disk that gives nothing before `over` is set; it says who `waits`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, ShelfOptions())
        self.over = threading.Event()
        self.waits = threading.Semaphore(0)

    def open(self, object_id: str) -> FileReader:
        self.waits.release()
        assert self.over.wait(20)
        return super().open(object_id)

    def stat(self, object_id: str) -> ObjectInfo | None:
        return ObjectInfo(object_id, len(CONTENT), None) if object_id in [*self] else None


@pytest.fixture
def own(tmp_path: Path) -> Iterator[FileStore]:
    with FileStore(tmp_path / "own", ShelfOptions(), may_block=False) as store:
        yield store


@pytest.mark.requirement("CIB-13")
def test_slow_loads_never_block_another(in_reactor: Any, own: FileStore, tmp_path: Path) -> None:
    behind = Held(tmp_path / "behind")
    for number in range(SLOW_MAX + 2):
        behind.put(f"slow{number}", CONTENT)
    own.put("quick", CONTENT)
    daemon = in_reactor(
        Daemon, in_reactor.reactor, own, tmp_path, group=str(tmp_path), member="store-1",
        behind=behind,
    )  # fmt: skip
    loaded: list[str] = []

    def load(name: str) -> None:
        with ShmdClient(tmp_path) as client:
            loaded.append(client.load(name))

    threads = [
        threading.Thread(target=load, args=(f"slow{number}",)) for number in range(SLOW_MAX + 2)
    ]
    for thread in threads:
        thread.start()
    for _ in range(SLOW_MAX):
        assert behind.waits.acquire(timeout=20)
    with ShmdClient(tmp_path) as client:
        assert Path(client.load("quick")).read_bytes() == CONTENT
        path = client.write("another")
        Path(path).write_bytes(CONTENT)
        client.commit(path, "another")
    assert loaded == []
    behind.over.set()
    for thread in threads:
        thread.join(20)
    assert len(loaded) == SLOW_MAX + 2
    figures = in_reactor(daemon.figures)
    assert figures["lifted"] == SLOW_MAX + 2
    in_reactor(daemon.close)
    behind.close()


def ended(in_reactor: Any, daemon: Daemon, netloc: str, name: str) -> PeerObject | Exception:
    """The outcome of a request to a peer."""
    try:
        found: PeerObject = in_reactor(daemon.ask, netloc, name)
    except Exception as error:
        return error
    return found


def test_a_neighbour_is_found_by_its_address_and_is_asked_in_one_hop(
    in_reactor: Any, own: FileStore, tmp_path: Path
) -> None:
    options = {"cluster_id": str(tmp_path), "kept": lambda object_id: None}
    near = in_reactor(
        neighbour, in_reactor.reactor, own, tmp_path / "1", netloc="127.0.0.1:1", **options
    )
    with open_disk({}, tmp_path / "other") as other:
        far = in_reactor(
            neighbour, in_reactor.reactor, other, tmp_path / "2", netloc="127.0.0.1:2", **options
        )
        other.put("x", CONTENT)
        found = ended(in_reactor, near, "127.0.0.1:2", "x")
        assert isinstance(found, PeerObject)
        assert Path(found.path).read_bytes() == CONTENT
        assert (found.size_bytes, found.checksum) == (len(CONTENT), other.checksum("x"))
        assert isinstance(ended(in_reactor, near, "127.0.0.1:2", "y"), ObjectNotFoundError)
        figures = in_reactor(far.figures)
        assert (figures["served"], figures["not_served"], figures["asked"]) == (1, 1, 0)
        in_reactor(far.close)
        gone = ended(in_reactor, near, "127.0.0.1:2", "x")
        assert isinstance(gone, PeerStoreError)
        assert "cannot be reached" in str(gone)
    in_reactor(near.close)
    assert isinstance(ended(in_reactor, near, "127.0.0.1:2", "x"), PeerStoreError)


def test_memory_that_is_not_shared_gives_a_file_that_lasts_until_it_is_opened(
    in_reactor: Any, own: FileStore, tmp_path: Path
) -> None:
    options = {"cluster_id": str(tmp_path), "kept": lambda object_id: None}
    content = bytes(range(256)) * 4096  # larger than the copies that are kept for nobody
    with open_scc({"capacity": "4MiB", "spill": "no"}, tmp_path) as image:
        near, far = (
            in_reactor(
                neighbour, in_reactor.reactor, store, tmp_path / port,
                netloc=f"127.0.0.1:{port}", **options,
            )
            for port, store in (("1", own), ("2", image))
        )  # fmt: skip
        image.put("x", content)
        found = ended(in_reactor, near, "127.0.0.1:2", "x")
        assert isinstance(found, PeerObject)
        assert link(own, "x", found) is None
        assert copy_in(own, "x", found).checksum == image.checksum("x")
        assert own.get("x") == content
        in_reactor(near.close)
        in_reactor(far.close)
        assert not Path(found.path).exists()


def test_what_programs_put_into_a_workers_store_is_told_to_it(
    in_reactor: Any, own: FileStore, tmp_path: Path
) -> None:
    kept: list[str] = []
    daemon = in_reactor(
        neighbour, in_reactor.reactor, own, tmp_path, cluster_id=str(tmp_path),
        netloc="127.0.0.1:1", kept=kept.append,
    )  # fmt: skip
    with ShmdClient(tmp_path) as client:
        path = client.write("x")
        Path(path).write_bytes(CONTENT)
        client.commit(path, "x")
        assert client.load("x")
    assert kept == ["x"]
    in_reactor(daemon.close)


def test_a_process_of_another_user_gets_nothing(
    in_reactor: Any, own: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cluster_id": str(tmp_path), "kept": lambda object_id: None}
    monkeypatch.setattr("ciel.shm.door.is_same_user", lambda sock: False)
    daemon = in_reactor(
        neighbour, in_reactor.reactor, own, tmp_path, netloc="127.0.0.1:1", **options
    )
    with ShmdClient(tmp_path) as client, pytest.raises(DaemonGoneError):
        client.load("x")
    monkeypatch.undo()
    monkeypatch.setattr("ciel.shm.connection.is_same_user", lambda sock: False)
    refused = ended(in_reactor, daemon, "127.0.0.1:1", "x")
    assert "belongs to another user" in str(refused)
    in_reactor(daemon.close)


def test_requests_end_with_the_daemon_and_at_once(
    in_reactor: Any, own: FileStore, tmp_path: Path
) -> None:
    behind = Held(tmp_path / "behind")
    behind.put("slow1", CONTENT)
    daemon = in_reactor(
        Daemon, in_reactor.reactor, own, tmp_path, group=str(tmp_path), member="store-1",
        behind=behind,
    )  # fmt: skip
    ends: list[Exception] = []

    def load() -> None:
        with ShmdClient(tmp_path) as client:
            try:
                client.load("slow1")
            except ShmdError as error:
                ends.append(error)

    thread = threading.Thread(target=load)
    begun_s = time.monotonic()
    thread.start()
    assert behind.waits.acquire(timeout=20)
    in_reactor(daemon.close)
    thread.join(20)
    assert time.monotonic() - begun_s < 15
    behind.over.set()
    assert [type(error) for error in ends] == [DaemonGoneError]
    wait_for(lambda: [*own] == [] and not [*(tmp_path / "own/incoming").glob("*/*")], "its end")
    behind.close()


@pytest.mark.requirement("POOL-4")
def test_a_program_allocates_in_another_store_and_the_owner_frees_it(stores: BlockStores) -> None:
    """POOL-4."""
    stores.start("a")
    (member,) = members(stores)
    with ShmdClient.at_socket(own_prefix(stores.group) + member) as client:
        path = Path(client.write("x:out:0", is_mapped=True))
        path.write_bytes(CONTENT)
        client.commit(str(path), "x:out:0")
        left = Path(client.write("x:out:1", is_mapped=True))
        assert left.exists()
    wait_for(lambda: not left.exists(), "the owner frees the memory")
    assert Path(stores.client("a").load("x:out:0")).read_bytes() == CONTENT


def test_a_store_that_nobody_serves_is_named() -> None:
    with pytest.raises(DaemonGoneError, match="@nobody: no daemon serves"):
        ShmdClient.at_socket("nobody").write("x:out:0")
