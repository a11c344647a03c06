"""Tests queues of disk jobs among processes, in Python and in C."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.storage import leases
from ciel.storage.device_semaphores import DeviceQueueError, QueueEntry, sweep
from ciel.testing.c_programs import compiled
from ciel.testing.homes import wait_for

LINES = Path(f"/dev/shm/ciel-io-{os.geteuid()}")
PYTHON = """
import sys
from ciel.storage.device_semaphores import QueueEntry
with QueueEntry(sys.argv[1], int(sys.argv[2])) as entry:
    timeout_ms = int(sys.argv[3])
    found = entry.wait(timeout_ms / 1000 if timeout_ms >= 0 else None)
    print("token" if found else "Connection timed out", flush=True)
    sys.stdin.read()
"""
WITHIN_S = 20.0


class Holder:
    """A process that waits for a permit, and holds it until its standard input is closed."""

    def __init__(self, command: list[str], device: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._device = device
        self.said: list[str] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            self.said.append(line.strip())

    def answer(self) -> str:
        self._thread.join(WITHIN_S)
        return self.said[0]

    def end(self) -> None:
        self._process.communicate()

    def kill(self) -> None:
        self._process.kill()
        self.end()


@pytest.fixture(scope="session")
def program() -> str:
    return str(compiled("io_token", ("tests/io_token.c", "tools/io_token.c", "tools/io_device.c")))


@pytest.fixture
def device() -> Iterator[str]:
    """Return the name of a device that no other test uses; afterwards its queue must be gone."""
    name = f"0-{secrets.randbits(60)}"
    yield name
    assert not (LINES / name).exists()


def places(device: str) -> int:
    """Count the processes that wait or have a permit."""
    try:
        return len(os.listdir(LINES / device))
    except FileNotFoundError:
        return 0


Start = Callable[..., Holder]


@pytest.fixture
def start(program: str, device: str) -> Iterator[Start]:
    """Start a process, in `c` or `python`, and wait until it is in the queue."""
    started: list[Holder] = []

    def start(language: str, limit: int = 1, timeout_ms: int = -1) -> Holder:
        commands = {"c": [program, "hold"], "python": [sys.executable, "-c", PYTHON]}
        before = places(device)
        holder = Holder([*commands[language], device, str(limit), str(timeout_ms)], device)
        started.append(holder)
        wait_for(lambda: places(device) > before or holder.said, "a place in the line")
        return holder

    yield start
    for holder in started:
        holder.kill()
    sweep()


BOTH = pytest.mark.parametrize("language", ["c", "python"])
PAIRS = pytest.mark.parametrize("first, second", [("python", "c"), ("c", "python"), ("c", "c")])


@pytest.mark.requirement("CIB-40")
@PAIRS
def test_the_next_process_waits_until_the_holder_ends(
    start: Start, first: str, second: str
) -> None:
    holder = start(first)
    assert holder.answer() == "token"
    waiter = start(second)
    assert not waiter.said
    holder.end()
    assert waiter.answer() == "token"
    waiter.end()


@PAIRS
def test_a_holder_that_is_killed_frees_its_place(start: Start, first: str, second: str) -> None:
    holder = start(first)
    assert holder.answer() == "token"
    waiter = start(second)
    holder.kill()
    assert waiter.answer() == "token"
    waiter.end()


@BOTH
def test_a_process_killed_while_it_waits_does_not_block_the_queue(
    start: Start, device: str, language: str
) -> None:
    with QueueEntry(device, 1) as held:
        killed = start(language)
        waiter = start("c")
        killed.kill()
        held.release()
        assert waiter.answer() == "token"
    waiter.end()


@BOTH
def test_a_wait_with_a_time_limit_times_out(start: Start, device: str, language: str) -> None:
    with QueueEntry(device, 1):
        waiter = start(language, timeout_ms=30)
        assert waiter.answer() == "Connection timed out"
        waiter.end()
        assert places(device) == 1


def test_as_many_entries_have_a_permit_as_the_limit_allows(device: str) -> None:
    with (
        QueueEntry(device, 2) as first,
        QueueEntry(device, 2) as second,
        QueueEntry(device, 2) as third,
    ):
        assert [first.check(), second.check(), third.check()] == [True, True, False]
        first.release()
        assert third.check()


def test_permits_are_given_in_the_order_of_arrival(device: str) -> None:
    entries = [QueueEntry(device, 1) for _ in range(5)]
    for number, entry in enumerate(entries):
        assert entry.wait(WITHIN_S)
        assert not any(later.check() for later in entries[number + 1 :])
        entry.release()


def test_an_entry_does_not_wait_for_later_ones(device: str) -> None:
    with (
        QueueEntry(device, 1) as first,
        QueueEntry(device, 1) as strict,
        QueueEntry(device, 5) as later,
    ):
        assert later.check()  # this entry has a higher limit
        first.release()
        assert strict.check()


def test_an_entry_released_before_it_has_a_permit_does_not_block_the_queue(device: str) -> None:
    with (
        QueueEntry(device, 1) as first,
        QueueEntry(device, 1) as second,
        QueueEntry(device, 1) as third,
    ):
        second.release()
        first.release()
        assert third.check()


def test_an_entry_can_be_awaited_without_a_time_limit(device: str) -> None:
    with QueueEntry(device, 1) as first, QueueEntry(device, 1) as second:
        leaving = threading.Timer(0.05, first.release)
        leaving.start()
        assert second.wait()
        leaving.join()


@pytest.mark.requirement("CIB-40")
def test_programs_and_threads_together_never_exceed_the_limit(
    program: str, device: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    limit, times = 2, 40
    command = [program, "loop", device, str(limit), str(times), str(log)]
    programs = [subprocess.Popen(command) for _ in range(3)]

    def loop() -> None:
        with log.open("ab", buffering=0) as file:
            for _ in range(times):
                with QueueEntry(device, limit) as entry:
                    assert entry.wait(WITHIN_S)
                    file.write(b"+")
                    file.write(b"-")

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [running.wait(WITHIN_S) for running in programs] == [0, 0, 0]
    held, most = 0, 0
    for mark in log.read_text():
        held += 1 if mark == "+" else -1
        most = max(most, held)
    assert (held, len(log.read_text())) == (0, 2 * 6 * times)
    assert most <= limit


def test_queues_are_private_to_their_user(device: str) -> None:
    with QueueEntry(device, 1):
        for place in (LINES, LINES / device):
            assert (place.stat().st_mode & 0o777, place.stat().st_uid) == (0o700, os.geteuid())


def test_a_queue_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"ciel-io-{os.geteuid()}").symlink_to("/tmp")
    with pytest.raises(DeviceQueueError, match="cannot count the disk jobs of other processes"):
        QueueEntry("8-0", 1, root=str(tmp_path))


def test_a_missing_directory_of_all_queues_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceQueueError, match=r"No such file or directory: .*missing"):
        QueueEntry("8-0", 1, root=str(tmp_path / "missing"))


def test_sweeping_removes_places_of_killed_processes(start: Start, device: str) -> None:
    start("c").kill()
    assert places(device) == 1
    sweep()
    assert places(device) == 0


def test_sweeping_spares_living_processes(device: str) -> None:
    with QueueEntry(device, 1), QueueEntry(device, 1) as second:
        sweep()
        root = os.open("/dev/shm", os.O_RDONLY)
        leases.sweep(root, prefix="ciel-io-")
        os.close(root)
        assert places(device) == 2
        assert not second.check()


def test_an_entry_waits_for_a_directory_that_is_briefly_locked(device: str) -> None:
    with QueueEntry(device, 1):
        fd = os.open(LINES / device, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        unlocking = threading.Timer(0.05, os.close, (fd,))
        unlocking.start()
        QueueEntry(device, 1).release()
        unlocking.join()


@pytest.mark.requirement("CIB-41")
def test_with_one_job_at_a_time_a_disk_seeks_once_for_each_file(
    device: str, tmp_path: Path
) -> None:
    sources = ("../benchmarks/storage/modelled_disk.c", "tools/io_token.c", "tools/io_device.c")
    program, model, files = str(compiled("modelled_disk", sources)), tmp_path / "disk", 6
    loaders = [
        subprocess.Popen(
            [program, "model", model, str(number + 1), "20", "100", "1", device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for number in range(files)
    ]  # fmt: skip
    for loader in loaders:
        assert loader.stdout is not None
        assert loader.stdout.readline() == b"ready\n"
    for loader in loaders:
        assert loader.stdin is not None
        loader.stdin.write(b"\n")
        loader.stdin.flush()
    for loader in loaders:
        loader.communicate(timeout=WITHIN_S)
        assert loader.returncode == 0
    assert int.from_bytes(model.read_bytes()[-8:], sys.byteorder) == files
