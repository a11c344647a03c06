"""Cores that share one memory: each finds the objects that another core has committed."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from ciel.scc.instances import remove_instance
from ciel.scc.shapes import ShmfsError
from ciel.scc.shmfs import Image
from ciel.scc.store import SccStore, open_cores, open_scc
from ciel.storage.errors import (
    CannotAdoptError,
    NoSpaceError,
    ObjectNotFoundError,
    StoreClosedError,
    StoreSpecError,
    StoreSystemError,
)
from ciel.storage.files import open_disk
from ciel.testing.homes import wait_for
from ciel.testing.store_rules import digest, exit_code, pattern, start_child
from ciel_tests.clusters.mounts import run_on_mount

INSTANCE = f"test-{os.getpid()}"
DIRECTORY = Path("/dev/shm", f"ciel-scc-{INSTANCE}")
BLOCK_BYTES = 65536
CONTENT = pattern(100_000)


def open_core(core: int | None = None, /, **options: object) -> SccStore:
    """Open one of four cores of the instance of these tests."""
    own = {} if core is None else {"core": core}
    given = {"cores": 4, "capacity": "4MiB", "instance": INSTANCE} | own | options
    texts = {name: str(value) for name, value in given.items()}
    return open_cores(texts)


@pytest.fixture
def cores() -> Iterator[list[SccStore]]:
    with ExitStack() as stack:
        yield [stack.enter_context(open_core(core)) for core in range(3)]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not DIRECTORY.exists()


def used(store: SccStore) -> int:
    return store.usage().used_bytes


# --- finding --------------------------------------------------------------------------------------


@pytest.mark.requirement("CIB-56")
def test_what_a_core_commits_another_finds_without_a_copy(cores: list[SccStore]) -> None:
    cores[0].put("a", CONTENT)
    before = used(cores[1])
    assert cores[1].stat("a") is None
    found = cores[1].discover("a")
    assert found == cores[1].stat("a") == cores[0].stat("a")
    assert found is not None
    assert found.checksum == digest(CONTENT)
    assert cores[1].get("a") == CONTENT
    assert used(cores[1]) == before
    assert [store.levels()[0].copied_bytes for store in cores] == [0, 0, 0]


def test_a_core_finds_nothing_that_is_not_committed(cores: list[SccStore]) -> None:
    with cores[0].begin("a") as writer:
        writer.write(CONTENT)
        assert cores[1].discover("a") is None
    assert cores[1].discover("a") is None


def test_a_shared_object_stays_until_its_last_holder_deletes_it(cores: list[SccStore]) -> None:
    cores[0].put("a", CONTENT)
    cores[1].discover("a")
    assert cores[0].delete("a")
    assert [list(store) for store in cores] == [[], ["a"], []]
    assert cores[2].discover("a") is not None
    for store in cores[1:]:
        assert store.get("a") == CONTENT
        assert store.delete("a")
    assert used(cores[0]) == 0


def test_what_is_found_twice_is_had_once(cores: list[SccStore]) -> None:
    cores[0].put("a", CONTENT)
    assert cores[1].discover("a") == cores[1].discover("a")
    assert cores[1].put("a", CONTENT) == cores[1].stat("a")
    assert cores[1].usage().object_count == 1


def test_a_checksum_that_nobody_asked_for_yet_is_computed_when_the_object_is_shared(
    cores: list[SccStore],
) -> None:
    seat = next(name for name in os.listdir(DIRECTORY / "cores") if name.startswith("0."))
    with Image.open(DIRECTORY / "control", DIRECTORY / "data") as image, image.create() as file:
        file.write(CONTENT, 0)
        file.commit(f"{seat}:a")
    assert cores[1].discover("a") == cores[0].stat("a")
    assert cores[0].checksum("a") == digest(CONTENT)


def test_an_object_of_another_kind_of_store_is_not_adopted(
    cores: list[SccStore], tmp_path: Path
) -> None:
    with open_disk({}, tmp_path) as disk:
        disk.put("a", CONTENT)
        with (
            disk.open("a") as reader,
            pytest.raises(CannotAdoptError, match="not in memory that this store shares"),
        ):
            cores[0].adopt("a", reader.path, checksum=digest(CONTENT), size_bytes=len(CONTENT))
        cores[0].put("b", CONTENT)
        with cores[0].open("b") as shared, pytest.raises(CannotAdoptError):
            disk.adopt("b", shared.source, checksum=digest(CONTENT), size_bytes=len(CONTENT))


# --- who maps, and who needs a name ---------------------------------------------------------------


def test_a_view_lies_in_the_memory_and_pins_it(cores: list[SccStore]) -> None:
    cores[0].put("a", CONTENT)
    with cores[0].open("a") as reader:
        view = reader.view()
    cores[0].delete("a")
    assert used(cores[0]) > 0
    assert view == CONTENT
    del view
    assert used(cores[0]) == 0


def test_an_object_in_pieces_is_one_view_all_the_same(cores: list[SccStore]) -> None:
    with cores[0].begin("a") as first, cores[0].begin("b") as second:
        for _ in range(6):
            first.write(b"a" * BLOCK_BYTES)
            second.write(b"b" * BLOCK_BYTES)
        first.commit()
        second.commit()
    with cores[0].open("a") as a, cores[0].open("b") as b:
        views = a.view(), b.view()
    assert views[0] == b"a" * 6 * BLOCK_BYTES
    assert views[1] == b"b" * 6 * BLOCK_BYTES
    with pytest.raises(TypeError):
        views[0][0] = 0


def test_programs_that_share_a_sealed_copy_are_given_one(cores: list[SccStore]) -> None:
    cores[0].put("a", CONTENT)
    with cores[0].open("a") as one, cores[0].open("a") as two:
        assert one.path == two.path
        assert subprocess.check_output(["tail", "-c", "1000", one.path]) == CONTENT[-1000:]
        with pytest.raises(PermissionError), open(one.path, "r+b", buffering=0) as file:
            file.write(b"x")
    assert cores[0].levels()[0].copied_bytes == len(CONTENT)


def test_a_copy_is_kept_for_the_next_reader_until_its_object_is_deleted(
    cores: list[SccStore],
) -> None:
    cores[0].put("a", CONTENT)
    with cores[0].open("a") as reader:
        path = Path(reader.path)
    with cores[0].open("a") as reader:
        assert reader.path == str(path)
    assert path.read_bytes() == CONTENT
    assert cores[0].levels()[0].copied_bytes == len(CONTENT)
    cores[0].delete("a")
    assert not path.exists()
    for number in range(8):  # so many do not fit
        cores[0].put(f"o{number}", CONTENT)
        with cores[0].open(f"o{number}") as reader:
            assert Path(reader.path).read_bytes() == CONTENT
    descriptors = [
        os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()
    ]
    assert sum("memfd:ciel-object" in place for place in descriptors) == 2**22 // 8 // len(CONTENT)


def test_a_copy_that_nobody_reads_gives_its_descriptor_to_the_next(
    cores: list[SccStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        cores[0].put(name, CONTENT)
    with cores[0].open("a") as reader:
        kept = Path(reader.path)
    make = os.memfd_create

    def make_if_there_is_room(name: str, flags: int) -> int:
        if kept.exists():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", make_if_there_is_room)
    with cores[0].open("b") as reader:
        assert Path(reader.path).read_bytes() == CONTENT
    with cores[0].open("b") as reader, cores[0].open("a") as other:
        kept = Path(reader.path)
        with pytest.raises(StoreSystemError, match="Too many open files"):
            other.fileno()


def test_a_program_that_reads_once_is_given_a_pipe_and_nothing_is_copied(
    cores: list[SccStore],
) -> None:
    cores[0].put("a", CONTENT)
    with cores[0].open("a") as reader:
        for _ in range(2):
            path = reader.piped_path
            assert stat.S_ISFIFO(os.stat(path).st_mode)
            assert subprocess.check_output(["cat", path]) == CONTENT
        unread = reader.piped_path
    wait_for(lambda: not os.path.exists(unread), "the end of a pipe that nobody opened")
    assert cores[0].levels()[0].copied_bytes == 0
    cores[0].delete("a")
    wait_for(lambda: not used(cores[0]), "the last handle's end")


def test_an_object_is_made_in_place(cores: list[SccStore]) -> None:
    with cores[0].begin("a") as first, cores[0].begin("b") as second:
        second.write(b"-" * BLOCK_BYTES)  # in the way of the first
        view = first.view(len(CONTENT))
        view[:] = CONTENT
        view.release()
        assert first.commit().checksum == digest(CONTENT)
    assert cores[0].get("a") == CONTENT
    assert cores[0].check() == []


@pytest.mark.requirement("CIB-52")
def test_what_has_no_room_lies_on_a_disk(tmp_path: Path) -> None:
    options = {"cores": "1", "capacity": "1MiB", "instance": INSTANCE}
    with open_scc(options, tmp_path) as store:
        for number in range(20):
            store.put(f"o{number}", CONTENT)
        assert all(store.get(f"o{number}") == CONTENT for number in range(20))
        memory, disk = store.levels()
        assert memory.capacity_bytes == 2**20
        assert disk.objects > 0


def test_what_a_program_wrote_finds_room_though_nobody_waits(tmp_path: Path) -> None:
    options = {"cores": "1", "capacity": "1MiB", "instance": INSTANCE}
    with open_scc(options, tmp_path) as store:  # in the thread that may not wait
        for number in range(8):
            with store.begin(f"o{number}") as writer:
                Path(str(writer.path)).write_bytes(pattern(700_000))
                if number % 2:
                    writer.account()  # as for a program that runs for longer
                writer.commit()
        assert all(store.get(f"o{number}") == pattern(700_000) for number in range(8))


def test_what_is_larger_than_the_image_is_still_refused(tmp_path: Path) -> None:
    options = {"cores": "1", "capacity": "1MiB", "instance": INSTANCE}
    with open_scc(options, tmp_path) as store, store.begin("large") as writer:
        Path(str(writer.path)).write_bytes(bytes(2 << 20))
        with pytest.raises(NoSpaceError):
            writer.account()
        with pytest.raises(NoSpaceError):
            writer.commit()


def test_a_program_that_is_the_object_runs_from_its_sealed_copy(cores: list[SccStore]) -> None:
    cores[0].put("program", Path("/bin/echo").read_bytes())
    with cores[0].open("program") as reader:
        fd = reader.fileno()
        assert subprocess.check_output([f"/proc/self/fd/{fd}", "here"], pass_fds=[fd]) == b"here\n"


def test_what_a_program_writes_by_name_is_counted_as_copied(cores: list[SccStore]) -> None:
    with cores[0].begin("a") as writer:
        Path(writer.path).write_bytes(CONTENT)
        assert writer.commit().checksum == digest(CONTENT)
    assert cores[0].levels()[0].copied_bytes == len(CONTENT)
    assert os.listdir(DIRECTORY / "incoming") != []
    assert [path for path in (DIRECTORY / "incoming").rglob("*") if path.is_file()] == []


# --- coming and going -----------------------------------------------------------------------------


def test_who_names_no_core_is_given_the_first_that_is_free(cores: list[SccStore]) -> None:
    with open_core() as fourth:
        fourth.put("a", b"content")
        assert cores[0].discover("a") is not None
        with pytest.raises(StoreSpecError, match="cores=4, numbered from 0"):
            open_core()


def test_a_core_is_claimed_by_one_worker_and_open_to_others(cores: list[SccStore]) -> None:
    cores[0].claim()
    cores[1].claim()
    with open_core(0) as again:
        said = f"'instance={INSTANCE}': process {os.getpid()} already uses core 0 of it"
        with pytest.raises(StoreSpecError, match=f"^{said}, .* or another core"):
            again.claim()
        again.put("a", CONTENT)
        assert cores[0].get("a") == CONTENT
        cores[0].close()
        again.claim()


def test_all_who_share_must_ask_for_the_same(cores: list[SccStore]) -> None:
    with pytest.raises(StoreSpecError, match=r"block_count is 64, not 128"):
        open_core(3, capacity="8MiB")


def test_a_core_that_was_killed_leaves_nothing_but_what_others_hold(cores: list[SccStore]) -> None:
    def die() -> None:
        store = open_core(3)
        for name in "abc":
            store.put(name, CONTENT)
        writer = store.begin("d", size_hint_bytes=500_000)
        writer.write(b"lost")
        Path(store.begin("e").path).write_bytes(b"lost")
        assert cores[0]  # of the parent, and not ours to use
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_code(start_child(die)) == -signal.SIGKILL
    assert cores[0].discover("a") is not None
    with open_core(3) as again:
        assert list(again) == []
        assert again.discover("b") is None
        assert again.discover("a") == cores[0].stat("a")
    assert used(cores[0]) == 2 * BLOCK_BYTES
    assert cores[0].check() == []


def test_an_instance_whose_cores_were_all_killed_goes_with_the_next_start_or_by_its_name() -> None:
    def die() -> None:
        open_core(0).put("a", CONTENT)
        os.kill(os.getpid(), signal.SIGKILL)

    for remove in (lambda: open_core(1, instance=f"{INSTANCE}-2").close(),
                   lambda: remove_instance(INSTANCE)):  # fmt: skip
        assert exit_code(start_child(die)) == -signal.SIGKILL
        assert DIRECTORY.exists()
        remove()
        assert not DIRECTORY.exists()


def test_two_who_start_at_once_make_one_image() -> None:
    def begin(core: int) -> None:
        os.read(gate, 1)
        with open_core(core) as store:
            store.put(f"of-{core}", CONTENT)
            os.write(done, b".")
            os.read(second_gate, 1)

    gate, start = os.pipe()
    second_gate, end = os.pipe()  # a quick child must not read the start of another
    wait, done = os.pipe()
    children = [start_child(partial(begin, core)) for core in range(4)]
    os.write(start, b"....")
    assert sum(len(os.read(wait, 1)) for _ in children) == 4
    seats = os.listdir(DIRECTORY / "cores")
    os.write(end, b"....")
    assert [exit_code(pid) for pid in children] == [0] * 4
    assert sorted(seat[0] for seat in seats) == list("0123")
    for fd in (gate, start, second_gate, end, wait, done):
        os.close(fd)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"cores": 0}, {"cores": "many"}, {"core": 4}, {"core": -1}, {"build": "other"},
        {"shards": 65}, {"size": 1}, {"instance": "a/b"}, {"block": 0},
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(StoreSpecError):
        open_core(None, **options).close()


@pytest.mark.parametrize(
    "options, option",
    [
        ({"block": 5000}, "block"), ({"block": 1024}, "block"), ({"block": "2GiB"}, "block"),
        ({"shards": 3}, "shards"), ({"capacity": "100TiB"}, "capacity"),
        ({"capacity": "1MiB", "block": "1GiB"}, "capacity"),
    ],
)  # fmt: skip
def test_a_shape_that_there_cannot_be_is_refused_by_its_option(
    options: dict[str, object], option: str
) -> None:
    with pytest.raises(StoreSpecError, match=f"^'{option}="):
        open_core(None, **options).close()


def test_an_image_that_is_no_image_is_refused_and_left_alone(tmp_path: Path) -> None:
    control, data = tmp_path / "control", tmp_path / "data"
    control.write_bytes(b"something else" * 1000)
    data.write_bytes(bytes(4096))
    with pytest.raises(ShmfsError) as caught:
        Image.open(control, data)
    assert caught.value.reason == "FORMAT"
    with pytest.raises(ShmfsError, match="there is no image at"):
        Image.open(tmp_path / "nowhere", data)
    control.write_bytes(b"")
    with pytest.raises(StoreSystemError):
        Image.open(control, data)


def test_damage_to_the_image_itself_is_found(cores: list[SccStore]) -> None:
    cores[0].put("a", CONTENT)
    image = cores[0]._image
    assert cores[0].check() == []
    with open(DIRECTORY / "control", "r+b") as control:
        content = bytearray(control.read())
        for place in range(len(content) - 1024, len(content)):
            content[place] ^= 0x55  # of the file allocation table
        control.seek(0)
        control.write(content)
    assert {problem.code for problem in cores[0].check()} >= {"image"}
    assert image.check() != []


def test_a_file_is_no_use_after_its_image(tmp_path: Path) -> None:
    store = open_core(0)
    store.put("a", CONTENT)
    reader = store.open("a")
    view = reader.view()
    store.close()
    assert reader.read(0, 10) == CONTENT[:10]
    reader.close()
    assert view == CONTENT
    with pytest.raises(StoreClosedError):
        store.get("a")


def test_an_object_that_is_gone_is_not_found(cores: list[SccStore]) -> None:
    with pytest.raises(ObjectNotFoundError):
        cores[0].open("a")


def test_memory_that_is_not_there_is_an_error_and_never_a_signal() -> None:
    mount = ["-t", "tmpfs", "-o", "size=4m", "none"]
    assert run_on_mount(mount, Path(__file__).parent / "full_scc.py", Path("/dev/shm")) == 0


def test_a_child_of_fork_does_not_keep_its_dead_parent_alive(tmp_path: Path) -> None:
    control, data = tmp_path / "control", tmp_path / "data"
    read_fd, write_fd = os.pipe()
    script = f"""
import os, sys, time
from pathlib import Path
from ciel.scc.shapes import Geometry
from ciel.scc.shmfs import Image
shape = Geometry(block_bytes=4096, block_count=16)
image = Image.open(Path({str(control)!r}), Path({str(data)!r}), shape)
file = image.create("half-made", size_hint_bytes=10)
if os.fork() == 0:
    os.write({write_fd}, b"x")  # it lives on for as long as this pipe is open at both ends
    os.read(0, 1)
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script], stdin=subprocess.PIPE, pass_fds=(write_fd,)
    ) as process:
        os.close(write_fd)
        assert os.read(read_fd, 1) == b"x"
        os.close(read_fd)
        process.wait(20)
        with Image.open(control, data) as image:
            assert image.sweep() == 1
            assert list(image.names()) == []
