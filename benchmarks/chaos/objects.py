"""Rows about objects and streams: lost, damaged, broken off, slow, huge, tiny and many."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.chaos.cluster import JOINED, SETTLED_WITHIN_S, Cluster, await_that, settled
from benchmarks.chaos.faults import flip_bit, pause
from benchmarks.chaos.rows import CannotRunError, Figure, Findings, Note, Setting, row
from ciel.client.client import Client
from ciel.client.jobs import Job
from ciel.core.refs import Failure, Future
from ciel.core.tasks import Mentions, Needs
from ciel.storage.digests import ATTRIBUTE
from ciel.testing.homes import private_bytes
from ciel.wire.references import to_json

LINKS: Final = 200
SEEDS: Final = 100
DEEP: Final = 20_000
BLOCKS: Final = 1000
LARGE: Final = 70_000
STREAM_BYTES: Final = 100_000_000
OFFSETS: Final = 100
HUGE_BYTES: Final = 64 << 30
TINY: Final = 1_000_000
MANY_OUTPUTS: Final = 1000
MUTANTS: Final = 100_000
SPOILERS: Final = 20
MANY: Final = f"""
from ciel.executors.sdk import ciel_task

def run(task):
    for number in range({MANY_OUTPUTS}):
        task.publish(number, b"%d" % number)

ciel_task.serve(run)
"""
LINK: Final = 'read n; printf x >>"$0"; printf "%2000d\\n" $((n + 1))'
"""Adds one to a number, whose text is too long for the master's memory."""


class Chain:
    """A chain of programs, each of which adds one to the output of the one before."""

    def __init__(self, job: Job, runs: Path) -> None:
        self._job, self._runs = job, runs
        self._last: Future | None = None

    def extend(self, count: int) -> None:
        """Add so many programs."""
        for _ in range(count):
            if self._last is None:
                self._last = self._job.run(["printf", "%2000d\\n", 0])
            else:
                link = ["sh", "-c", LINK, str(self._runs)]
                self._last = self._job.run(link, inputs=[self._last])

    def await_value(self) -> int:
        """Return the output of the last program."""
        assert self._last is not None
        return int(self._job.read(self._last, timeout_s=SETTLED_WITHIN_S))

    def runs(self) -> int:
        """Count the runs of all programs but the first."""
        return self._runs.stat().st_size if self._runs.exists() else 0


def delete_objects(cluster: Cluster) -> int:
    """Delete the files of all objects; return their number."""
    found = [path for name in cluster.daemons if name != "master" for path in cluster.stored(name)]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


@row(
    "O1",
    "all stored objects of a chain of 200 tasks are deleted at a random place, 100 times; once of "
    "20,000 tasks",
    "the chain is recomputed from its start, without recursion",
    "100 equal; runs again ≤ 1.1 x the least; depth 20,000",
    limit_s=1800,
)
def _lost_chain(setting: Setting) -> Findings:
    chance = random.Random(20261128)
    seeds, least, wrong, again = setting.count(SEEDS, 3), 0, 0, 0
    with Cluster.running(setting) as cluster, cluster.client() as client:
        for seed in range(seeds):
            place = chance.randint(1, LINKS - 1)
            with client.job("chain", keep=True) as job:
                chain = Chain(job, cluster.home.path / f"runs{seed}")
                chain.extend(1 + place)
                chain.await_value()
                delete_objects(cluster)
                chain.extend(LINKS - place)
                wrong += chain.await_value() != LINKS
            least += place
            again += chain.runs() - LINKS
            client.remove_job(job.id)
        deep = setting.count(DEEP, 300)
        with client.job("deep", keep=True) as job:
            chain = Chain(job, cluster.home.path / "deep")
            chain.extend(1 + deep)
            chain.await_value()
            delete_objects(cluster)
            chain.extend(1)
            started_s = time.monotonic()
            wrong += chain.await_value() != deep + 1
            took_s = time.monotonic() - started_s
    yield Figure("wrong results", wrong, "", 0)
    yield Figure("runs again to the least", again / least, "x", 1.1, digits=3)
    yield Figure("depth", deep)
    yield Figure("runs again in the deep chain, to the least", (chain.runs() - deep - 1) / deep,
                 "x", 1.1, digits=3)  # fmt: skip
    yield Figure("time for each of them", took_s / deep * 1000, "ms", digits=1)


@row(
    "O2",
    "one bit is flipped in each of 1,000 stored objects",
    "the reader's worker finds it by the checksum, and the object is recomputed",
    "1,000 found; 0 wrong answers; reading at 1 GB/s costs ≤ 1.05 x",
)
def _flipped_bits(setting: Setting) -> Findings:
    count = setting.count(BLOCKS, 30)
    with Cluster.running(setting, 1) as cluster, cluster.client() as client:
        with client.job("blocks", keep=True) as job:
            made = [block(job, number) for number in range(count)]
            settled(job, made)
            files = cluster.stored("worker0")
            await_that(lambda: all(ATTRIBUTE in os.listxattr(path) for path in files), "checksums")
            chance = random.Random(20261128)
            for path in files:
                flip_bit(path, chance.randrange(LARGE))
            sums = [job.run(["sha256sum"], inputs=[ref]) for ref in made]
            found = [client.read(ref).split()[0] for ref in settled(job, sums)]
        right = [hashlib.sha256(content(number)).hexdigest().encode() for number in range(count)]
        wrong = sum(one != other for one, other in zip(found, right, strict=True))
        reports = len(re.findall(r"damaged|does not match its checksum", cluster.log("worker0")))
    yield Figure("objects with a flipped bit", len(files), "", count, at_most=False)
    yield Figure("found", reports, "", count, at_most=False)
    yield Figure("wrong answers", wrong, "", 0)
    extra_s = min(verified_reading_s(setting, "first") for _ in range(3)) - min(
        verified_reading_s(setting, "never") for _ in range(3)
    )
    gigabytes = read_bytes(setting) / 1e9
    yield Figure("reading at 1 GB/s, verified to not", 1 + extra_s / gigabytes, "x", 1.05,
                 digits=2)  # fmt: skip


def read_bytes(setting: Setting) -> int:
    """Return the size of the object whose reading is timed."""
    return setting.count(1 << 30, 256 << 20)


def content(number: int) -> bytes:
    """Return the output of `block`."""
    return f"{number}\n".encode() * (LARGE // (len(str(number)) + 1))


def block(job: Job, number: int) -> Future:
    """Add a program whose output depends on a number."""
    text = f"yes {number} | head -c {len(content(number))}"
    return job.run(["sh", "-c", text])


def verified_reading_s(setting: Setting, verify: str) -> float:
    """Return the time of a program that reads an object of 1 GiB for the first time."""
    size = read_bytes(setting)
    of_workers = ("--verify", verify)
    with (
        Cluster.running(setting, 1, of_workers=of_workers) as cluster,
        cluster.client() as client,
        client.job("reading", keep=True) as job,
    ):
        made = job.run(["head", "-c", size, "/dev/zero"])
        settled(job, [made])
        (path,) = cluster.stored("worker0")
        if verify != "never":
            await_that(lambda: ATTRIBUTE in os.listxattr(path), "its checksum")
        started_s = time.monotonic()
        job.read(job.run(["sh", "-c", "cat >/dev/null"], inputs=[made]), timeout_s=300)
        return time.monotonic() - started_s


BREAK: Final = (
    'if mkdir "$1" 2>/dev/null; then head -c "$2" "$3"; '
    'until [ -e "$1.read" ]; do sleep 0.01; done; kill -9 $$; fi; cat "$3"'
)
READ: Final = ': >"$0.read"; exec sha256sum'


@row(
    "O3",
    "the producer of a stream of 100 MB is killed at 100 offsets, while it is read",
    "its reader fails with it; both run again",
    "100 equal; 0 readers end with a part",
    limit_s=1800,
)
def _broken_streams(setting: Setting) -> Findings:
    size, offsets = setting.count(STREAM_BYTES, 200_000), setting.count(OFFSETS, 5)
    with Cluster.running(setting, of_workers=("--slots", "4")) as cluster:
        place = cluster.home.path
        data = os.urandom(1000) * (size // 1000)
        (place / "content").write_bytes(data)
        right = hashlib.sha256(data).hexdigest().encode()
        wrong = died = 0
        with cluster.client() as client:
            for number in range(offsets):
                offset, mark = len(data) * number // max(offsets - 1, 1), place / f"m{number}"
                words = ["sh", "-c", BREAK, "sh", str(mark), offset, str(place / "content")]
                with client.job("stream") as job:
                    args = {"command_line": words, "stream_output": True}
                    (made,) = job.add("stdinout", {"args": args}, needs=Needs(retries=1))
                    read = job.run(["sh", "-c", READ, str(mark)], inputs=[made])
                    found = job.read(read, timeout_s=300).split()[0]
                wrong += found != right
                died += mark.is_dir()
    yield Figure("producers that died once", died, "", offsets, at_most=False)
    yield Figure("wrong sums", wrong, "", 0)


LEAVE: Final = 'head -c "$1" >/dev/null; : >"$0"; kill -9 $$'


@row(
    "O4",
    "the only reader of a stream of 100 MB is killed at 100 offsets",
    "the producer goes on, and its output is whole",
    "100 whole; no producer stalls > 2 s",
    limit_s=1800,
)
def _left_streams(setting: Setting) -> Findings:
    size, offsets = setting.count(STREAM_BYTES, 200_000), setting.count(OFFSETS, 5)
    with Cluster.running(setting, of_workers=("--slots", "2")) as cluster:
        place = cluster.home.path
        data = os.urandom(1000) * (size // 1000)
        (place / "content").write_bytes(data)
        wrong, left, slowest_s = 0, 0, 0.0
        with cluster.client() as client:
            for number in range(offsets):
                offset, mark = len(data) * number // offsets, place / f"m{number}"
                with client.job("stream", keep=True) as job:
                    script = 'head -c 100000 "$0"; sleep 0.2; tail -c +100001 "$0"'
                    args = {"command_line": ["sh", "-c", script, str(place / "content")],
                            "stream_output": True}  # fmt: skip
                    (made,) = job.add("stdinout", {"args": args})
                    reader = job.run(["sh", "-c", LEAVE, str(mark), offset], inputs=[made])
                    job.want([made, reader])
                    (ended,) = settled(job, [reader])
                    started_s = time.monotonic()
                    (whole,) = settled(job, [made])
                    slowest_s = max(slowest_s, time.monotonic() - started_s)
                    digest = hashlib.sha256()
                    for chunk in client.read_chunks(whole):
                        digest.update(chunk)
                left += isinstance(ended, Failure) and mark.exists()
                wrong += digest.digest() != hashlib.sha256(data).digest()
                client.remove_job(job.id)
    yield Figure("readers that were killed", left, "", offsets, at_most=False)
    yield Figure("outputs that are not whole", wrong, "", 0)
    yield Figure("longest end of a producer after its reader", slowest_s, "s", 2.0, digits=1)


@row(
    "O5",
    "a producer writes 1 GB/s, and its reader takes 1 MB/s",
    "the output is a file, which the reader follows; no process buffers it",
    "growth of the worker ≤ 8 MiB",
)
def _slow_reader(setting: Setting) -> Findings:
    size = setting.count(1 << 30, 64 << 20)
    slow = (
        "import sys\nfrom time import sleep\n"
        "for _ in range(10):\n sys.stdin.buffer.read(1 << 20)\n sleep(1)"
    )
    with Cluster.running(setting, 1, of_workers=("--slots", "2")) as cluster:
        pid = cluster.daemons["worker0"].pid
        with cluster.client() as client, client.job("slow") as job:
            job.read(job.run(["true"]), timeout_s=300)
            before, most = private_bytes(pid), 0
            args = {"command_line": ["head", "-c", size, "/dev/zero"], "stream_output": True}
            (made,) = job.add("stdinout", {"args": args})
            reader = job.run([sys.executable, "-c", slow], inputs=[made])
            job.want([reader])
            with ThreadPoolExecutor(1) as waiting:
                done = waiting.submit(settled, job, [reader])
                while not done.done():
                    most = max(most, private_bytes(pid) - before)
                    pause(0.05)
                failed = isinstance(done.result()[0], Failure)
    yield Figure("growth of the worker", most / 2**20, "MiB", 8, digits=1)
    yield Figure("failures", failed, "", 0)


@row(
    "O9",
    "an object of 64 GB, which is larger than memory, is hashed by a program and read by a client",
    "it is read in place or in pieces",
    "peak of memory ≤ 64 MB for each process",
    limit_s=1800,
)
def _huge_object(setting: Setting) -> Findings:
    size = setting.count(HUGE_BYTES >> 20, 256) << 20
    script = f"truncate -s {size} /proc/self/fd/1; sleep 0.1"
    hashing = (
        "import hashlib, resource, sys\nd = hashlib.sha256()\n"
        "while b := sys.stdin.buffer.read(1 << 20): d.update(b)\n"
        "print(d.hexdigest(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    reading = (
        "import resource, sys\nfrom ciel import Client\nimport json\n"
        "from ciel.wire.references import from_json\n"
        "with Client() as client:\n"
        " ref = from_json(json.loads(sys.argv[1]))\n"
        " size = sum(len(c) for c in client.read_chunks(ref))\n"
        "print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    with Cluster.running(setting, 2, of_workers=("--verify", "first")) as cluster:
        cluster.home.environ["CIEL_ACCESS"] = str(cluster.home.path / "access.json")
        with cluster.client() as client, client.job("huge", keep=True) as job:
            (made,) = settled(job, [job.run(["sh", "-c", script])])
            sums = [job.run([sys.executable, "-c", hashing], inputs=[made]) for _ in range(2)]
            told = [client.read(ref).split() for ref in settled(job, sums)]
            done = cluster.home.run(
                "python", "-c", reading, json.dumps(to_json(made)), timeout_s=1800
            )
            assert done.returncode == 0, done.stderr[-500:]
            got_bytes, client_kib = map(int, done.stdout.split())
            peaks = {
                name: peak_bytes(daemon.pid) / 2**20 for name, daemon in cluster.daemons.items()
            }
    digest = hashlib.sha256()
    for _ in range(size >> 20):
        digest.update(bytes(1 << 20))
    right = digest.hexdigest().encode()
    yield Figure("wrong sums", sum(words[0] != right for words in told), "", 0)
    yield Figure("bytes that the client lacks", size - got_bytes, "", 0)
    yield Figure("size", size / 2**30, "GiB", digits=2)
    yield Figure("peak of a program", max(int(w[1]) for w in told) / 1024, "MiB", 64, digits=1)
    yield Figure("peak of the client", client_kib / 1024, "MiB", 64, digits=1)
    for name, peak in peaks.items():
        yield Figure(f"peak of {name}", peak, "MiB", 64, digits=1)


def peak_bytes(pid: int) -> int:
    """Return the peak of the resident memory of a process, with files that it has mapped."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


SIZES: Final = (0, 1, 4095, 4096, 4097, 65535, 65536, 65537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1)


@row(
    "O10",
    "objects of 0 bytes, 1 byte, a page and 1 MiB, each also a byte more and less; then 1,000,000 "
    "tiny objects",
    "they are written and read like all others",
    "0 wrong; memory of the master ≤ 400 B an object",
    limit_s=1800,
)
def _odd_sizes(setting: Setting) -> Findings:
    tiny = setting.count(TINY, 100_000)
    with Cluster.running(setting) as cluster, cluster.client() as client:
        wrong = 0
        with client.job("sizes", keep=True) as job:
            for size in SIZES:
                data = random.Random(size).randbytes(size)
                put = client.upload_content(data, "content")
                copies = [job.run(["cat"], inputs=[put]) for _ in range(2)]
                wrong += [client.read(ref) for ref in settled(job, copies)] != [
                    data, data,
                ]  # fmt: skip
        pid = cluster.daemons["master"].pid
        many(client, tiny // 10)
        before = private_bytes(pid)
        many(client, tiny)
        grown = private_bytes(pid) - before
        tasks = tiny // 10
        no_ops(client, tasks // 10)
        before = private_bytes(pid)
        no_ops(client, tasks)
        of_task = private_bytes(pid) - before
    yield Figure("wrong contents", wrong, "", 0)
    yield Figure("memory of the master an object", grown / tiny, "B", 400)
    yield Figure("memory of the master a task with its object", of_task / tasks, "B")
    yield Note(f"{tiny:,} objects, which programs with 1,000 outputs each wrote, and a job keeps")


def many(client: Client, count: int) -> None:
    """Produce tiny objects, 1,000 by each program, which a job keeps."""
    with client.job("tiny", keep=True) as job:
        command = [sys.executable, "-c", MANY]
        for _ in range(max(1, count // MANY_OUTPUTS)):
            refs = job.add("proc", {"command": command}, n_outputs=MANY_OUTPUTS)
            job.want(refs)
        job.close()
        job.wait(900)


def no_ops(client: Client, count: int) -> None:
    """Run tasks that produce an empty object each, which a job keeps."""
    with client.job("no-ops", keep=True) as job:
        arguments: dict[str, Any] = {"args": {"inputs": []}}
        for start in range(0, count, 1000):
            number = min(1000, count - start)
            refs = [job.add("sync", arguments, mentions=Mentions.INPUTS)[0] for _ in range(number)]
            job.want(refs)
        job.close()
        job.wait(900)


@row(
    "O11",
    "100,000 changed objects with tables of Arrow are read; then 20 tasks write into a table that "
    "they have as an argument",
    "each object is refused or gives a valid table; each task that writes is killed, no other is",
    "0 crashes; 20 of 20 killed; 200 other readers of the table get the right sum",
)
def _hostile_tables(setting: Setting) -> Findings:
    count = setting.count(MUTANTS, 1000)
    try:
        import pyarrow as pa
    except ImportError as error:
        raise CannotRunError(f"{error}") from None
    command = [sys.executable, "-m", "ciel.testing.arrow_mutants", f"{count}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    refused, valid, invalid = map(int, done.stdout.split() or (0, 0, 0))

    def spoil(table: Any) -> None:
        import ctypes

        (_, values) = table["n"].chunk(0).buffers()
        ctypes.memset(values.address, 0, 8)

    def total(table: Any) -> int:
        return int(table["n"].to_numpy().sum())

    with Cluster.running(setting) as cluster, cluster.client() as client:
        put = client.put(pa.table({"n": range(LARGE)}))
        writers = [client.submit(spoil, put) for _ in range(SPOILERS)]
        readers = [client.submit(total, put) for _ in range(10 * SPOILERS)]
        killed = sum("SIGSEGV" in str(writer.exception(300)) for writer in writers)
        right = sum(reader.result(300) == sum(range(LARGE)) for reader in readers)
        starts = sum(cluster.log(name).count(JOINED) for name in ("worker0", "worker1"))
    yield Figure("crashes of the reader", done.returncode != 0, "", 0)
    yield Figure("objects read", refused + valid + invalid, "", count, at_most=False)
    yield Figure("tasks killed that wrote", killed, "", SPOILERS, at_most=False)
    yield Figure("other tasks with the right sum", right, "", len(readers), at_most=False)
    yield Figure("workers that started again", starts - 2, "", 0)
    yield Note(
        f"of the changed objects {refused:,} were refused, {valid:,} are valid tables, and "
        f"pyarrow finds {invalid:,} invalid when it validates each value"
    )
