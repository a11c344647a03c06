import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.storage import leases
from ciel.storage.errors import StoreSpecError
from ciel.storage.trees import remove_tree
from ciel.testing.store_rules import exit_code, start_child

ROUNDS = 1500


@pytest.fixture
def parent_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_a_held_directory_stays_until_its_last_holder_releases_it(
    parent_fd: int, tmp_path: Path
) -> None:
    first = leases.hold("held", parent_fd=parent_fd)
    second = leases.hold("held", parent_fd=parent_fd)
    (tmp_path / "held" / "content").touch()
    for fd in (first, second):
        assert leases.remove_unheld("held", parent_fd=parent_fd) is False
        os.close(fd)
    assert leases.remove_unheld("held", parent_fd=parent_fd) is True
    assert os.listdir(tmp_path) == []


def test_sweep_removes_unheld_directories_with_its_prefix(parent_fd: int, tmp_path: Path) -> None:
    for name in ("a-held", "a-dead", "a-dead.0123", "b-dead"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-file").touch()
    held = leases.hold("a-held", parent_fd=parent_fd)
    assert leases.sweep(parent_fd, prefix="a-") == 2
    assert sorted(os.listdir(tmp_path)) == ["a-file", "a-held", "b-dead"]
    os.close(held)


@pytest.mark.slow
def test_holder_never_loses_its_directory_to_a_remover(parent_fd: int, tmp_path: Path) -> None:
    def come_and_go() -> None:
        for _ in range(ROUNDS):
            fd = leases.hold("held", parent_fd=parent_fd)
            os.mkdir(str(os.getpid()), dir_fd=fd)  # fails in a directory that was removed
            assert os.path.samestat(os.fstat(fd), os.stat("held", dir_fd=parent_fd))
            os.rmdir(str(os.getpid()), dir_fd=fd)
            os.close(fd)
            leases.remove_unheld("held", parent_fd=parent_fd)

    children = [start_child(come_and_go) for _ in range(4)]
    assert [exit_code(pid) for pid in children] == [0, 0, 0, 0]
    assert os.listdir(tmp_path) == []


def test_a_directory_has_one_owner_until_that_process_is_gone(
    parent_fd: int, tmp_path: Path
) -> None:
    def own() -> int:
        return leases.own(
            "owner", parent_fd=parent_fd, subject="name=it", what="it", instead="name"
        )

    def own_and_die() -> None:
        own()
        os.write(ready, b".")
        os.read(gate, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    gate, end = os.pipe()
    wait, ready = os.pipe()
    child = start_child(own_and_die)
    os.read(wait, 1)
    said = f"^'name=it': process {child} already uses it, .*; name another name$"
    with pytest.raises(StoreSpecError, match=said):
        own()
    os.write(end, b".")
    assert exit_code(child) == -signal.SIGKILL
    fd = own()
    with pytest.raises(StoreSpecError, match=f"process {os.getpid()} already uses it"):
        own()
    os.close(fd)
    os.close(own())
    for fd in (gate, end, wait, ready):
        os.close(fd)


def test_a_file_or_link_in_place_of_a_directory_is_removed_alone(tmp_path: Path) -> None:
    (tmp_path / "there" / "inner").mkdir(parents=True, mode=0o500)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("there")
    for name in ("file", "link", "absent"):
        remove_tree(tmp_path / name)
    assert os.listdir(tmp_path) == ["there"]
    assert (tmp_path / "there" / "inner").stat().st_mode & 0o777 == 0o500


CLOSED_TREE = """
import os, sys
from ciel.storage.trees import remove_tree

os.chdir(sys.argv[1])
os.makedirs("tree/writable/closed/deep")
open("tree/writable/closed/deep/file", "w").close()
os.symlink(sys.argv[1], "tree/link")
for name in ("tree/writable/closed/deep", "tree/writable/closed", "tree"):
    os.chmod(name, 0o500 if name == "tree" else 0)
try:
    os.listdir("tree/writable/closed")
except PermissionError:
    print("closed")
fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
remove_tree("tree", parent_fd=fd if sys.argv[2] == "fd" else None)
print(*os.listdir("."))
"""


@pytest.mark.parametrize("how", ["fd", "path"])
def test_directories_without_permissions_are_removed(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", CLOSED_TREE, str(tmp_path), how]
    if os.geteuid() == 0:  # root may read closed directories
        command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "closed\n\n", done.stderr
