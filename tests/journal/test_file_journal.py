"""Tests the journal in files: its order, its lock, restarts, torn ends, and disks that fail."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.core.events import (
    CloseJob,
    JobChanged,
    JournalCompacted,
    MasterStarted,
    Message,
    SubmitJob,
    WantObjects,
)
from ciel.core.ids import JobId
from ciel.journal.directory import (
    base_path,
    find_files,
    journal_path,
    read_groups,
    unfinished_path,
)
from ciel.journal.errors import (
    JournalDamagedError,
    JournalError,
    JournalFormatError,
    JournalInUseError,
)
from ciel.journal.file_journal import ALWAYS, INTERVAL, OFF, SYNC_MODES, FileJournal
from ciel.journal.groups import HEADER, encode_records, seal
from ciel.testing.builders import a_job_spec
from ciel.wire.frames import encode_frames


class Owner:
    """The thread of a master: it runs the functions that the journal's thread gives it."""

    def __init__(self, directory: Path, sync: str = ALWAYS) -> None:
        self._calls: queue.Queue[Callable[[], object]] = queue.Queue()
        self.failures: list[str] = []
        self.journal = FileJournal(directory, sync, self._calls.put)
        self.journal.on_failed = self.failures.append
        try:
            self.before = [r for group in self.journal.groups() for r in group.records]
            self.journal.open()
        except BaseException:
            self.journal.close()
            raise

    def write(self, *records: Message) -> None:
        """Append records, and wait until they are durable."""
        number = self.journal.append(records)
        while self.journal.durable < number and not self.failures:
            self.take_call()

    def take_call(self) -> None:
        """Run the next function that the journal's thread gives, as soon as there is one."""
        self._calls.get(timeout=10)()

    def close(self) -> list[Message]:
        """Close the journal; return the records that it had at first."""
        self.journal.close()
        return self.before


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def owner(directory: Path) -> Iterator[Owner]:
    owner = Owner(directory)
    yield owner
    owner.journal.close()


def numbered(number: int) -> Message:
    return CloseJob(JobId(f"job-{number}"))


def content(directory: Path) -> list[Message]:
    return [record for group in read_groups(directory) for record in group.records]


@pytest.mark.parametrize("sync", SYNC_MODES)
def test_what_is_durable_is_in_the_file(directory: Path, sync: str) -> None:
    owner = Owner(directory, sync)
    try:
        for number in range(50):
            owner.write(numbered(number))
            assert content(directory)[-1] == numbered(number)
    finally:
        owner.journal.close()
    assert content(directory) == [numbered(number) for number in range(50)]


def test_many_appends_keep_their_order_and_share_groups(owner: Owner, directory: Path) -> None:
    for number in range(2000):
        owner.journal.append([numbered(number)])
    owner.write(MasterStarted(7, "x"))
    assert content(directory) == [*map(numbered, range(2000)), MasterStarted(7, "x")]
    assert len(list(read_groups(directory))) < 2000


def test_a_new_master_reads_what_the_earlier_ones_wrote(directory: Path) -> None:
    for number in range(3):
        owner = Owner(directory)
        assert owner.before == [numbered(earlier) for earlier in range(number)]
        owner.write(numbered(number))
        owner.journal.close()
    assert len(find_files(directory).paths) == 3


def test_two_masters_cannot_use_one_journal(owner: Owner, directory: Path) -> None:
    with pytest.raises(JournalInUseError, match="uses it; end that master first"):
        Owner(directory)


@pytest.mark.parametrize("cut_bytes", [1, 10, 30])
def test_a_group_that_a_crash_cut_off_is_removed(directory: Path, cut_bytes: int) -> None:
    first = Owner(directory)
    first.write(numbered(1))
    first.write(numbered(2))
    first.journal.close()
    path = journal_path(directory, 1)
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    second = Owner(directory)
    assert second.before == [numbered(1)]
    assert second.journal.cut_bytes > 0
    second.write(numbered(3))
    second.journal.close()
    assert content(directory) == [numbered(1), numbered(3)]


@pytest.mark.parametrize("size_bytes", [0, 5])
def test_a_header_that_a_crash_cut_off_stops_no_later_master(
    directory: Path, size_bytes: int
) -> None:
    first = Owner(directory)
    first.write(numbered(1))
    first.journal.close()
    journal_path(directory, 2).write_bytes(HEADER[:size_bytes])
    for number in (2, 3):
        later = Owner(directory)
        assert later.before == [numbered(earlier) for earlier in range(1, number)]
        later.write(numbered(number))
        later.journal.close()


def test_a_damaged_middle_is_named_and_nothing_is_cut(directory: Path) -> None:
    first = Owner(directory)
    for number in range(3):
        first.write(numbered(number))
    first.journal.close()
    path = journal_path(directory, 1)
    data = bytearray(path.read_bytes())
    data[len(HEADER) + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        JournalDamagedError, match=r"at byte 16 a group does not match its checksum"
    ):
        Owner(directory)
    assert path.read_bytes() == data


def test_records_of_a_newer_version_are_not_cut_off(directory: Path) -> None:
    first = Owner(directory)
    first.write(numbered(1))
    first.journal.close()
    path = journal_path(directory, 1)
    with path.open("ab") as file:
        file.write(seal(encode_frames([(["invented-later", 1], b"")]), 5.0))
    data = path.read_bytes()
    with pytest.raises(JournalDamagedError, match=r"'invented-later' is not expected here"):
        Owner(directory)
    assert path.read_bytes() == data


def test_a_missing_file_and_a_foreign_file_are_named(directory: Path) -> None:
    for number in range(3):
        owner = Owner(directory)
        owner.write(numbered(number))
        owner.journal.close()
    journal_path(directory, 2).unlink()
    with pytest.raises(JournalError, match=r"the file 00000002\.journal is missing"):
        Owner(directory)
    journal_path(directory, 2).write_bytes(b"ciel journal 9\n\0 and so on")
    with pytest.raises(JournalFormatError, match="the file has version 9"):
        Owner(directory)


def test_a_disk_without_room_ends_the_acknowledgements(tmp_path: Path) -> None:
    """On a file that may have 4 KiB."""
    program = """
import queue, resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_file_journal import Owner, numbered
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
owner = Owner(Path(sys.argv[1]))
number = 0
while not owner.failures:
    owner.write(numbered(number))
    number += 1
print(number - 1, owner.failures[0])
"""
    argv = [sys.executable, "-c", program, str(tmp_path / "journal"), str(Path(__file__).parent)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    acknowledged, failure = done.stdout.split(" ", 1)
    assert failure.endswith("cannot be written: File too large\n")
    survivor = Owner(tmp_path / "journal")
    survivor.journal.close()
    assert survivor.before == [numbered(number) for number in range(int(acknowledged))]


@pytest.mark.slow
@pytest.mark.parametrize("sync", [ALWAYS, INTERVAL, OFF])
def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path, sync: str) -> None:
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_file_journal import Owner, numbered
owner = Owner(Path(sys.argv[1]), sys.argv[3])
number = 0
while True:
    owner.write(numbered(number))
    print(number, flush=True)
    number += 1
"""
    directory = tmp_path / "journal"
    argv = [sys.executable, "-c", program, str(directory), str(Path(__file__).parent), sync]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(200)]
        time.sleep(0.05)
        process.kill()
        acknowledged += [int(line) for line in process.stdout]
    survivor = Owner(directory)
    survivor.journal.close()
    count = len(survivor.before)
    assert count in (len(acknowledged), len(acknowledged) + 1)
    assert survivor.before == [numbered(number) for number in range(count)]


@pytest.mark.parametrize("sync, is_compressed", [(ALWAYS, True), (OFF, False)])
def test_only_the_thread_compresses(directory: Path, sync: str, is_compressed: bool) -> None:
    owner = Owner(directory, sync)
    owner.write(*(numbered(number) for number in range(200)))
    owner.journal.close()
    [path] = find_files(directory).paths
    plain_bytes = len(encode_records([numbered(number) for number in range(200)]))
    assert (path.stat().st_size < plain_bytes) == is_compressed


def ciel(*words: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from ciel.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60
    )


@pytest.mark.slow
def test_the_commands_show_a_journal_and_its_damage(directory: Path) -> None:
    owner = Owner(directory)
    owner.write(MasterStarted(1, "x"), numbered(1))
    owner.write(numbered(2))
    owner.journal.close()
    done = ciel("journal", "check", str(directory))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("00000001.journal: 3 records in 2 groups, ")
    lines = [
        json.loads(line) for line in ciel("journal", "dump", str(directory)).stdout.split("\n")[:-1]
    ]
    assert [line["kind"] for line in lines] == ["master_started", "close", "close"]
    assert lines[0]["fields"] == [1, "x"]
    path = journal_path(directory, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    done = ciel("journal", "check", str(directory))
    assert done.returncode == 0
    assert "; cut off by a crash at byte " in done.stdout
    path.write_bytes(whole[:30] + b"x" + whole[31:])
    done = ciel("journal", "check", str(directory), "--json")
    assert done.returncode == 1
    [facts] = json.loads(done.stdout)["files"]
    assert facts["is_fault"]
    assert facts["damage"]["offset"] == 16


# --- bases ----------------------------------------------------------------------------------------


def next_file(owner: Owner) -> int:
    """Continue in a new file; return the number of the one before."""
    numbers: list[int] = []
    owner.journal.begin_file(lambda number, last: numbers.append(number))
    while not numbers:
        owner.take_call()
    return numbers[0]


def adopt(owner: Owner, number: int) -> str:
    reasons: list[str] = []
    owner.journal.adopt_base(number, reasons.append)
    while not reasons:
        owner.take_call()
    return reasons[0]


def write_unfinished(directory: Path, *records: Message) -> None:
    unfinished_path(directory).write_bytes(HEADER + seal(encode_records(records), 1.0))


@pytest.mark.parametrize("sync", [ALWAYS, OFF])
def test_a_base_replaces_the_files_before_it(directory: Path, sync: str) -> None:
    owner = Owner(directory, sync)
    owner.write(numbered(1), numbered(2))
    assert next_file(owner) == 1
    owner.write(numbered(3))
    write_unfinished(directory, numbered(2))
    assert adopt(owner, 1) == ""
    assert sorted(path.name for path in directory.iterdir()) == [
        "00000001.base", "00000002.journal", "lock",
    ]  # fmt: skip
    owner.write(numbered(4))
    assert content(directory) == [numbered(2), numbered(3), numbered(4)]
    assert owner.journal.base_bytes == base_path(directory, 1).stat().st_size
    assert owner.journal.added_bytes == journal_path(directory, 2).stat().st_size
    assert next_file(owner) == 2
    write_unfinished(directory, numbered(5))
    assert adopt(owner, 2) == ""
    assert content(directory) == [numbered(5)]
    owner.close()


def test_a_crash_at_any_step_of_an_adoption_loses_and_repeats_nothing(directory: Path) -> None:
    for number in range(3):
        owner = Owner(directory)
        owner.write(numbered(number))
        owner.journal.close()
    write_unfinished(directory, numbered(7))
    assert Owner(directory).close() == [numbered(0), numbered(1), numbered(2)]
    assert not unfinished_path(directory).exists()
    write_unfinished(directory, numbered(7))
    unfinished_path(directory).rename(base_path(directory, 3))
    for removed in range(4):  # so many of the replaced files
        crashed = directory.with_name(f"crashed-{removed}")
        shutil.copytree(directory, crashed)
        for number in range(1, removed + 1):
            journal_path(crashed, number).unlink()
        assert Owner(crashed).close() == [numbered(7)]
        assert find_files(crashed).replaced == []


def test_a_base_that_cannot_be_adopted_changes_nothing(directory: Path, owner: Owner) -> None:
    owner.write(numbered(1))
    next_file(owner)
    assert "No such file" in adopt(owner, 1)
    owner.write(numbered(2))
    assert content(directory) == [numbered(1), numbered(2)]


def test_a_base_that_is_cut_off_is_damaged(directory: Path, owner: Owner) -> None:
    owner.write(numbered(1))
    next_file(owner)
    write_unfinished(directory, numbered(1))
    adopt(owner, 1)
    owner.journal.close()
    journal_path(directory, 2).unlink()
    path = base_path(directory, 1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(JournalDamagedError, match="cut off"):
        Owner(directory)
    assert ciel("journal", "check", str(directory)).returncode == 1


def test_a_new_file_begins_only_if_there_is_room(directory: Path, owner: Owner) -> None:
    owner.write(numbered(1))
    journal_path(directory, 2).mkdir()
    assert next_file(owner) == 0
    owner.write(numbered(2))
    journal_path(directory, 2).rmdir()
    assert content(directory) == [numbered(1), numbered(2)]


@pytest.mark.slow
def test_the_command_compacts_a_journal_that_no_master_uses(directory: Path) -> None:
    job = a_job_spec("job-1")
    owner = Owner(directory)
    owner.write(SubmitJob(job), *(WantObjects(job.id, ()) for _ in range(1000)))
    assert "uses it" in ciel("journal", "compact", str(directory)).stderr
    owner.journal.close()
    with open(journal_path(directory, 1), "ab") as file:
        file.write(b"CJg1")  # a crash
    done = ciel("journal", "compact", str(directory), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert 0 < facts["after_bytes"] < facts["before_bytes"]
    found = Owner(directory).close()
    assert [type(record) for record in found] == [SubmitJob, JobChanged, JournalCompacted]
    assert ciel("journal", "compact", str(directory / "none")).returncode != 0


def test_what_an_earlier_master_left_is_durable_before_it_counts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed master may leave groups that a power failure would still take away."""
    owner = Owner(directory)
    owner.write(CloseJob(JobId("job-1")))
    owner.journal.close()
    synced: list[str] = []
    fsync = os.fsync

    def spy(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy)
    Owner(directory).journal.close()
    assert "00000001.journal" in synced


@pytest.mark.parametrize("sync", [ALWAYS, INTERVAL])
def test_a_new_file_begins_after_all_appends_so_far(
    directory: Path, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby gets the files before the new one, and then the appends after this request."""
    is_writing, may_go_on = threading.Event(), threading.Event()
    write = FileJournal._write

    def write_slowly(journal: FileJournal, data: bytes) -> None:
        is_writing.set()
        assert may_go_on.wait(10)
        write(journal, data)

    monkeypatch.setattr(FileJournal, "_write", write_slowly)
    owner = Owner(directory, sync)
    try:
        owner.journal.append([numbered(1)])
        assert is_writing.wait(10)
        owner.journal.append([numbered(2)])  # it waits until the first one is written
        begun: list[tuple[int, int]] = []
        owner.journal.begin_file(lambda number, last: begun.append((number, last)))
        may_go_on.set()
        while not begun:
            owner.take_call()
        owner.write(numbered(3))
    finally:
        owner.journal.close()
    assert begun == [(1, 2)]
    journal_path(directory, 2).unlink()
    assert content(directory) == [numbered(1), numbered(2)]
