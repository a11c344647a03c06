from pathlib import Path
from random import Random

import pytest

from ciel.storage import space
from ciel.storage.errors import CorruptObjectError, NoSpaceError
from ciel.storage.files import FileStore, open_disk
from ciel.storage.interface import Capabilities
from ciel.storage.shelf import ShelfOptions
from ciel.testing.directory_store_suite import DirectoryStoreSuite


class DiskStoreSuite(DirectoryStoreSuite):
    capabilities = Capabilities(
        mappable=True,
        nameable=True,
        streaming=True,
        shared_between_processes=True,
        bounded=False,
        may_block=True,
    )

    def raw_path(self, where: Path, object_id: str) -> Path:
        return where / "store" / "objects" / object_id.replace(":", "+")

    def raw_temporaries(self, where: Path) -> list[Path]:
        return [path for path in (where / "store" / "incoming").rglob("*") if path.is_file()]

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> FileStore:
        return open_disk({}, where / "store")


@pytest.mark.requirement("CIB-54")
class TestDiskStore(DiskStoreSuite):
    pass


class TestBoundedDiskStore(DiskStoreSuite):
    capabilities = Capabilities(
        mappable=True,
        nameable=True,
        streaming=True,
        shared_between_processes=True,
        bounded=True,
        may_block=True,
    )

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> FileStore:
        capacity = str(capacity_bytes or "32MiB")
        return open_disk({"capacity": capacity, "sync": "no"}, where / "store")


def test_a_flipped_bit_is_found_in_each_of_a_thousand_objects(tmp_path: Path) -> None:
    """Only a check finds it: a local reader does not wait for a checksum (ADR 4)."""
    chance = Random(2)
    with open_disk({}, tmp_path / "store") as store:
        names = [f"o{number}" for number in range(1000)]
        for name in names:
            store.put(name, chance.randbytes(chance.randint(1, 3000)))
        assert store.check() == []
        for name in names:
            path = tmp_path / "store" / "objects" / name
            content = bytearray(path.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.chmod(0o600)
            path.write_bytes(content)
            path.chmod(0o400)
        assert sorted(problem.place for problem in store.check()) == sorted(names)
        for name in names:
            with pytest.raises(CorruptObjectError, match="committed as"):
                store.verify(name)


def test_more_than_the_device_has_is_refused_before_anything_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(fd: int, mode: int, start: int, size_bytes: int) -> int:
        raise AssertionError(f"{size_bytes} bytes would have been allocated")

    with open_disk({}, tmp_path) as store:
        monkeypatch.setattr(space, "_fallocate", allocate)
        with pytest.raises(NoSpaceError):
            store.begin("large", size_hint_bytes=1 << 60)
        with pytest.raises(AssertionError, match="4096 bytes"):
            store.begin("small", size_hint_bytes=4096)


def test_a_store_with_one_owner_does_not_count_its_objects_at_each_refusal(tmp_path: Path) -> None:
    """Writers that wait for space ask again and again. Other processes add nothing there."""
    with FileStore(tmp_path, ShelfOptions(capacity_bytes=10_000)) as store:
        store.claim()
        store.put("x", bytes(8_000))
        (tmp_path / "objects" / "x").unlink()
        with pytest.raises(NoSpaceError):
            store.put("y", bytes(8_000))
        store._shelf.space.recount_s = 0.0
        store.put("y", bytes(8_000))
