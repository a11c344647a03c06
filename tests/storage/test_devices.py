import errno
import os
import resource
import tempfile
from pathlib import Path

import pytest

from ciel.storage.digests import ATTRIBUTE
from ciel.storage.errors import StoreSpecError, StoreSystemError
from ciel.storage.files import open_disk
from ciel.storage.interface import ObjectReader
from ciel.testing.store_rules import digest, exit_code, start_child
from ciel_tests.clusters.mounts import run_on_mount

HERE = Path(__file__).parent
NOBODY = 65534


def test_full_disk_is_an_error_and_recovers_without_restart(tmp_path: Path) -> None:
    mount = ["-t", "tmpfs", "-o", "size=8m,nr_inodes=50", "none"]
    assert run_on_mount(mount, HERE / "full_disk.py", tmp_path) == 0


def test_checksums_work_without_extended_attributes(tmp_path: Path) -> None:
    mount = ["-t", "ramfs", "none"]
    assert run_on_mount(mount, HERE / "without_attributes.py", tmp_path) == 0


def test_a_checksum_computed_late_is_recorded_for_an_unprivileged_user() -> None:
    def ask() -> None:
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        with open_disk({}, Path(place, "store")) as store:
            with store.begin("a") as writer:
                Path(writer.path).write_bytes(b"content")
                assert writer.commit().checksum is None
            late = store.checksum("a")
        with open_disk({}, Path(place, "store")) as store:
            info = store.stat("a")
            assert info
            assert info.checksum == late
            assert store.check() == []  # read-only again

    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o777)
        assert exit_code(start_child(ask)) == 0


def test_a_checksum_attribute_that_a_program_copied_is_ignored(tmp_path: Path) -> None:
    with open_disk({}, tmp_path / "store") as store, store.begin("a") as writer:
        Path(writer.path).write_bytes(b"content")
        os.setxattr(writer.path, ATTRIBUTE, b"0123456789abcdef")  # as `cp --archive` does
        assert writer.commit().checksum is None
        assert store.checksum("a") == digest(b"content")


def test_running_out_of_descriptors_raises_a_store_error(tmp_path: Path) -> None:
    def open_many() -> None:
        with open_disk({}, tmp_path / "store") as store:
            store.put("a", b"content")
            in_use = len(os.listdir("/proc/self/fd"))
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 10, most))
            readers: list[ObjectReader] = []

            def open_until_refused() -> None:
                while True:
                    readers.append(store.open("a"))

            with pytest.raises(StoreSystemError) as caught:
                open_until_refused()
            assert caught.value.error_number == errno.EMFILE
            with pytest.raises(StoreSystemError):
                store.begin("b")
            readers.pop().close()
            assert store.usage().reserved_bytes == 0
            assert store.get("a") == b"content"

    assert exit_code(start_child(open_many)) == 0


def test_huge_object_is_digested_in_constant_memory(tmp_path: Path) -> None:
    def verify() -> None:
        with open_disk({}, tmp_path / "store") as store:
            with store.begin("huge") as writer:
                os.truncate(writer.path, 2**28)
                assert writer.commit().size_bytes == 2**28
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert store.verify("huge").size_bytes == 2**28
            grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            assert grown_bytes < 16 * 2**20

    assert exit_code(start_child(verify)) == 0


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_a_file_or_link_in_place_of_the_objects_directory_is_refused(
    tmp_path: Path, kind: str
) -> None:
    objects = tmp_path / "store" / "objects"
    objects.parent.mkdir()
    if kind == "file":
        objects.touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        objects.symlink_to(tmp_path / "elsewhere")
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(StoreSpecError):
        open_disk({}, tmp_path / "store")
    assert os.listdir("/proc/self/fd") == descriptors


def test_synced_store_commits(tmp_path: Path) -> None:
    with open_disk({"sync": "yes"}, tmp_path / "store") as store:
        store.put("a", b"content")
        assert store.get("a") == b"content"
