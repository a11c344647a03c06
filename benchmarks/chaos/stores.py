"""Rows about stores that are full, and objects that are deleted while they are read."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.chaos.cluster import Cluster, await_that, settled
from benchmarks.chaos.faults import on_tmpfs
from benchmarks.chaos.rows import Figure, Findings, Note, Setting, row
from ciel.core.refs import Failure
from ciel.shm.store import ShmStore
from ciel.storage.errors import ObjectNotFoundError

DISK: Final = "size=8m,nr_inodes=50"
NAMED: Final = "NO_SPACE"
SHM: Final = "size=4m"
CREATES: Final = 1000
READERS: Final = 8
MIB: Final = 1 << 20


@row(
    "O6",
    "the disk of a work directory (8 MiB, 50 files) is full by its bytes, then by its files",
    "tasks fail with NO_SPACE; no part of an output is visible; the worker goes on later",
    "0 partial objects; all named NO_SPACE; goes on ≤ 2 s after space is free",
)
def _full_disk(setting: Setting) -> Findings:
    rounds = setting.count(20, 2)
    partial = failed = 0
    others: list[str] = []
    resumed: list[float] = []
    wraps = {"worker0": on_tmpfs(DISK, "worker0-spool")}
    with Cluster.running(setting, 0, wraps=wraps) as cluster:
        (cluster.home.path / "worker0-spool").mkdir()
        cluster.start_worker("worker0")
        inside = Path(
            f"/proc/{cluster.daemons['worker0'].pid}/root{cluster.home.path}/worker0-spool"
        )
        with cluster.client() as client:
            for number in range(rounds):
                fill = fill_bytes if number % 2 == 0 else fill_files
                with client.job("full", keep=True) as job:
                    fill(inside)
                    refs = settled(
                        job, [job.run(["head", "-c", 2 * MIB, "/dev/zero"]) for _ in range(3)]
                    )
                    failures = [ref for ref in refs if isinstance(ref, Failure)]
                    failed += len(failures)
                    others += [f"{f.reason}: {f.details}" for f in failures if f.reason != NAMED]
                    objects = [*inside.glob("store/objects/*")]
                    partial += sum(path.stat().st_size != 2 * MIB for path in objects)
                    for path in inside.glob("fill*"):
                        path.unlink()
                    free_s = time.monotonic()
                    job.read(job.run(["head", "-c", 100_000, "/dev/zero"]), timeout_s=300)
                    resumed.append(time.monotonic() - free_s)
                client.remove_job(job.id)
    yield Figure("failures with another reason", len(others), "", 0)
    yield Figure("programs that failed", failed, "", rounds, at_most=False)
    yield Figure("partial objects", partial, "", 0)
    yield Figure("goes on after at most", max(resumed), "s", 2.0, digits=1)
    yield from [Note(text[:300]) for text in others[:2]]


def fill_bytes(place: Path) -> None:
    """Fill a disk up to its last byte."""
    with suppress(OSError), open(place / "fill", "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def fill_files(place: Path) -> None:
    """Create files until there can be no more."""
    with suppress(OSError):
        for number in range(1000):
            (place / f"fill{number}").touch()


@row(
    "O7",
    "1,000 outputs of 64 KiB are written while /dev/shm has 4 MiB, by tasks and by a store alone",
    "outputs go to disk, or the store refuses them with NO_SPACE",
    "0 signals; 0 failed tasks",
)
def _full_shared_memory(setting: Setting) -> Findings:
    count = setting.count(CREATES, 100)
    wraps = {"worker0": on_tmpfs(SHM, "/dev/shm")}
    store = ("--store", "shm")
    with Cluster.running(setting, 1, wraps=wraps, of_workers=store) as cluster:
        with cluster.client() as client, client.job("full", keep=True) as job:
            refs = [job.run(["head", "-c", 65536, "/dev/urandom"]) for _ in range(count)]
            found = settled(job, refs)
            failed = sum(isinstance(ref, Failure) for ref in found)
            sizes = {len(client.read(ref)) for ref in found if not isinstance(ref, Failure)}
        alive = cluster.daemons["worker0"].poll() is None
    script = (
        "import sys\nfrom ciel.shm.store import ShmStore\n"
        "from ciel.storage.errors import NoSpaceError\nrefused = 0\n"
        "with ShmStore('chaos', 64 << 20) as store:\n"
        f" for number in range({count}):\n"
        "  try: store.put(f'o{number}', bytes(65536))\n"
        "  except NoSpaceError: refused += 1\n"
        "print(refused)"
    )
    done = cluster.home.run(*on_tmpfs(SHM, "/dev/shm"), "python", "-c", script, timeout_s=300)
    yield Figure("tasks failed", failed, "", 0)
    yield Figure("outputs of another size", len(sizes - {65536}), "", 0)
    yield Figure("worker died", not alive, "", 0)
    yield Figure("exit status of the store's process", done.returncode, "", 0)
    yield Figure("creates refused without a signal", int(done.stdout or -1), "", count - 64,
                 at_most=False)  # fmt: skip


@row(
    "O8",
    "8 processes verify the SHA-256 of mapped objects while another one deletes them for 60 s",
    "what is mapped stays valid; its space returns after the last reader",
    "0 mismatches; 0 faults; space returns",
)
def _deleted_while_read(setting: Setting) -> Findings:
    seconds, instance = setting.seconds(60.0, 3.0), f"chaos{os.getpid()}"
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with ShmStore(instance, 256 * MIB) as store:
        readers = [
            context.Process(target=verify, args=(instance, seconds, queue)) for _ in range(READERS)
        ]
        for reader in readers:
            reader.start()
        until_s, round_number = time.monotonic() + seconds + 1.0, 0
        while time.monotonic() < until_s:
            for number in range(16):
                body = os.urandom(1000) * 200
                store.put(f"o{number}", hashlib.sha256(body).digest() + body)
            for number in range(16):
                store.delete(f"o{number}")
            round_number += 1
        for reader in readers:
            reader.join()
        counts = [queue.get(timeout=60) for reader in readers if reader.exitcode == 0]
        await_that(lambda: store.usage().used_bytes == 0, "the space")
        used = store.usage().used_bytes
    yield Figure("objects verified", sum(read for read, _ in counts))
    yield Figure("mismatches", sum(wrong for _, wrong in counts), "", 0)
    yield Figure("readers that died", sum(r.exitcode != 0 for r in readers), "", 0)
    yield Figure("bytes in use at the end", used, "", 0)
    yield Figure("rounds of the deleter", round_number)


def verify(instance: str, seconds: float, queue: multiprocessing.Queue[tuple[int, int]]) -> None:
    """Map and verify objects for some time; put the numbers of all and of wrong ones."""
    read = wrong = 0
    until_s = time.monotonic() + seconds
    with ShmStore(instance) as store:
        while time.monotonic() < until_s:
            for number in range(16):
                try:
                    with store.open(f"o{number}") as reader:
                        content = bytes(reader.view())
                except ObjectNotFoundError:
                    continue
                read += 1
                wrong += hashlib.sha256(content[32:]).digest() != content[:32]
    queue.put((read, wrong))
