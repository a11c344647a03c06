"""The store `scc`, by the suite of all stores: coherent memory in one piece and divided, and strict
emulation. The remaining builds, and random walks through the slow ones, with CIEL_LONG=1.
"""

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from ciel.scc.builds import Build
from ciel.scc.shapes import ShmfsError
from ciel.scc.shmfs import Image
from ciel.scc.store import open_cores
from ciel.storage.interface import Capabilities, ObjectStore
from ciel.testing.store_suite import StoreSuite

ROOT = Path("/dev/shm")
IS_LONG = os.environ.get("CIEL_LONG") == "1"
BLOCK_BYTES = 4096


def instance_of(where: Path) -> str:
    return f"test-{blake2b(str(where).encode(), digest_size=8).hexdigest()}"


def directory_of(where: Path) -> Path:
    return ROOT / f"ciel-scc-{instance_of(where)}"


def image_of(where: Path, build: Build) -> Image:
    directory = directory_of(where)
    return Image.open(directory / "control", directory / "data", build=build)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not directory_of(tmp_path).exists()


class SccRules(StoreSuite):
    build: Build = "coherent"
    shards = 1

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> ObjectStore:
        core = 0
        if where.name == "other":  # another core, in the same memory
            where, core = where.parent, 1
        # Without coherence, what takes long is walking many names.
        block_bytes = BLOCK_BYTES if capacity_bytes or self.build == "coherent" else 2**16
        options = {
            "capacity": capacity_bytes or "32MiB", "block": block_bytes, "cores": 4, "core": core,
            "build": self.build, "shards": self.shards, "instance": instance_of(where),
        }  # fmt: skip
        return open_cores({name: str(value) for name, value in options.items()})

    def raw_name(self, where: Path, object_id: str) -> str:
        seats = os.listdir(directory_of(where) / "cores")
        return next(f"{seat}:{object_id}" for seat in seats if seat.startswith("0."))

    def raw_get(self, where: Path, object_id: str) -> bytes | None:
        with image_of(where, self.build) as image:
            try:
                with image.open_file(self.raw_name(where, object_id)) as file:
                    return bytes(file.view())
            except ShmfsError:
                return None

    def raw_put(self, where: Path, object_id: str, content: bytes) -> None:
        with image_of(where, self.build) as image, image.create() as file:
            file.write(content, 0)
            file.commit(self.raw_name(where, object_id))

    def raw_damage(self, where: Path, object_id: str) -> None:
        name = self.raw_name(where, object_id)
        with image_of(where, self.build) as image, image.open_file(name) as file:
            start_bytes, length_bytes = file.runs(file.info().size_bytes)[0]
        with open(directory_of(where) / "data", "r+b", buffering=0) as data:
            place = start_bytes + length_bytes // 2
            byte = os.pread(data.fileno(), 1, place)[0]
            os.pwrite(data.fileno(), bytes([byte ^ 4]), place)


def capabilities(*, mappable: bool) -> Capabilities:
    return Capabilities(
        mappable=mappable,
        nameable=True,
        streaming=True,
        shared_between_processes=True,
        bounded=True,
        may_block=False,
    )


@pytest.mark.requirement("CIB-54")
class TestSccStore(SccRules):
    capabilities = capabilities(mappable=True)


@pytest.mark.requirement("CIB-30", "POOL-3")
class TestStrict(SccRules):
    capabilities = capabilities(mappable=False)
    build = "strict"
    shards = 64


if IS_LONG:

    @pytest.mark.requirement("CIB-24")
    class TestWithManyLocks(SccRules):
        capabilities = capabilities(mappable=True)
        shards = 64

    @pytest.mark.requirement("POOL-3")
    class TestFlushing(SccRules):
        capabilities = capabilities(mappable=True)
        build = "flushing"

    class TestFlushingWithManyLocks(SccRules):
        capabilities = capabilities(mappable=True)
        build = "flushing"
        shards = 64

    class TestStrictWithOneLock(SccRules):
        capabilities = capabilities(mappable=False)
        build = "strict"

else:
    for name in ("random_walk_agrees_with_a_dict", "hostile_ids_are_refused_and_touch_nothing"):
        setattr(TestStrict, f"test_{name}", None)  # seconds
