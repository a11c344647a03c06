from pathlib import Path

from ciel.storage.files import FileStore, open_disk
from ciel.storage.interface import Capabilities
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
