import os
import signal
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from ciel.shm.store import ShmStore, remove_instance
from ciel.storage.errors import CannotAdoptError, StoreSpecError
from ciel.storage.files import open_disk
from ciel.storage.interface import Capabilities
from ciel.testing.directory_store_suite import DirectoryStoreSuite
from ciel.testing.homes import wait_for
from ciel.testing.store_rules import exit_code, start_child
from ciel_tests.clusters.mounts import run_on_mount

ROOT = Path("/dev/shm")
ROUNDS = 150


def instance_of(where: Path) -> str:
    return f"test-{blake2b(str(where).encode(), digest_size=8).hexdigest()}"


def directory_of(where: Path) -> Path:
    return ROOT / f"ciel-{instance_of(where)}"


def open_at(where: Path) -> ShmStore:
    return ShmStore(instance_of(where), 32 << 20)


def die_with_an_open_store(where: Path) -> None:
    store = open_at(where)
    store.put("a", b"content")
    store.begin("b", size_hint_bytes=100_000)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not directory_of(tmp_path).exists()
    assert not directory_of(tmp_path / "other").exists()


@pytest.mark.requirement("CIB-20", "CIB-54")
class TestShmStore(DirectoryStoreSuite):
    capabilities = Capabilities(
        mappable=True,
        nameable=True,
        streaming=True,
        shared_between_processes=True,
        bounded=True,
        may_block=False,
    )

    def raw_path(self, where: Path, object_id: str) -> Path:
        return directory_of(where) / "objects" / object_id.replace(":", "+")

    def raw_temporaries(self, where: Path) -> list[Path]:
        return [path for path in (directory_of(where) / "incoming").rglob("*") if path.is_file()]

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> ShmStore:
        return ShmStore(instance_of(where), capacity_bytes or 32 << 20)


def test_instance_of_a_killed_process_goes_with_the_next_start_of_any(tmp_path: Path) -> None:
    assert exit_code(start_child(lambda: die_with_an_open_store(tmp_path))) == -signal.SIGKILL
    with open_at(tmp_path / "other"):
        assert not directory_of(tmp_path).exists()


def test_instance_of_a_killed_process_is_removed_by_who_knows_its_id(tmp_path: Path) -> None:
    def is_removed() -> bool:
        assert exit_code(start_child(lambda: die_with_an_open_store(tmp_path))) == -signal.SIGKILL
        return remove_instance(instance_of(tmp_path))

    wait_for(is_removed, "an instance that no other test has swept before")
    assert not directory_of(tmp_path).exists()
    assert remove_instance(instance_of(tmp_path)) is False


def test_open_instance_is_not_removed(tmp_path: Path) -> None:
    with open_at(tmp_path) as store:
        store.put("a", b"content")
        assert remove_instance(instance_of(tmp_path)) is False
        with open_at(tmp_path / "other"):
            assert store.get("a") == b"content"


def test_instance_goes_with_the_last_who_has_it_open(tmp_path: Path) -> None:
    with open_at(tmp_path) as second:
        with open_at(tmp_path) as first:
            first.put("a", b"content")
        assert second.get("a") == b"content"
    assert not directory_of(tmp_path).exists()


def test_an_instance_is_claimed_by_one_worker_and_open_to_others(tmp_path: Path) -> None:
    with open_at(tmp_path) as first, open_at(tmp_path) as second:
        first.claim()
        first.claim()
        second.put("a", b"content")
        said = f"'instance={instance_of(tmp_path)}': process {os.getpid()} already uses this store"
        with pytest.raises(StoreSpecError, match=f"^{said}, .*; name another instance$"):
            second.claim()
        first.close()
        second.claim()
        assert second.get("a") == b"content"


def test_dead_instance_is_not_joined(tmp_path: Path) -> None:
    assert exit_code(start_child(lambda: die_with_an_open_store(tmp_path))) == -signal.SIGKILL
    with open_at(tmp_path) as store:
        assert list(store) == []
        assert store.usage().used_bytes == 0


def test_instance_that_many_open_and_close_is_always_whole(tmp_path: Path) -> None:
    def come_and_go() -> None:
        for _ in range(ROUNDS):
            with open_at(tmp_path) as store:
                store.put(f"own:{os.getpid()}", b"content")
                assert store.delete(f"own:{os.getpid()}")

    children = [start_child(come_and_go) for _ in range(3)]
    assert [exit_code(pid) for pid in children] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["symlink", "file"])
def test_only_directories_are_swept(tmp_path: Path, kind: str) -> None:
    (tmp_path / "target" / "objects").mkdir(parents=True)
    planted = directory_of(tmp_path)
    if kind == "symlink":
        planted.symlink_to(tmp_path / "target")
    else:
        planted.touch()
    try:
        with pytest.raises(StoreSpecError):
            open_at(tmp_path)
        assert remove_instance(instance_of(tmp_path)) is False
        assert planted.is_symlink() == (kind == "symlink")
        assert (tmp_path / "target" / "objects").is_dir()
    finally:
        planted.unlink()


@pytest.mark.parametrize("instance", ["..", "a/b", "a.b", "", "x" * 65, "a\n"])
def test_instance_id_is_no_path(instance: str) -> None:
    with pytest.raises(StoreSpecError):
        ShmStore(instance)
    with pytest.raises(StoreSpecError):
        remove_instance(instance)


def test_object_on_a_disk_is_not_adopted(tmp_path: Path) -> None:
    with open_disk({}, tmp_path / "disk") as disk, open_at(tmp_path) as store:
        info = disk.put("a", b"content")
        with disk.open("a") as reader, pytest.raises(CannotAdoptError, match="another file system"):
            store.adopt("a", reader.path, checksum=info.checksum or "", size_bytes=7)
        assert store.usage().reserved_bytes == 0


@pytest.mark.slow
def test_full_shared_memory_is_an_error_and_never_a_signal() -> None:
    mount = ["-t", "tmpfs", "-o", "size=4m", "none"]
    assert run_on_mount(mount, Path(__file__).parent / "full_shm.py", ROOT) == 0


def test_a_store_that_was_promised_more_than_there_is_moves_down_in_time() -> None:
    mount = ["-t", "tmpfs", "-o", "size=16m", "none"]
    assert run_on_mount(mount, Path(__file__).parent / "small_shm.py", ROOT) == 0
