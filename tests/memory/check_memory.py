"""Checks of remote memory that take too long for a test: `make check-memory`.

Each check starts real servers, prints a line for each figure, and says whether the goal is met. The
exit status is 1 if an answer was wrong; a figure that misses its goal is only printed.

    python tests/memory/check_memory.py [NAME ...]

Shows NET-2, NET-5 and NET-7.

Needs Debian's packages nbdkit, nbdkit-plugin-dev, libnbd-bin, python3-libnbd, qemu-utils, fio and
e2fsprogs.
"""

from __future__ import annotations

import filecmp
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from ciel.testing.homes import Home, wait_for
from ciel.testing.memory.cluster import MemoryCluster

sys.path.append(str(Path(__file__).parents[1] / "lib"))  # as for pytest

from ciel_tests.hostile import frames as hostile_frames
from ciel_tests.hostile import requests as hostile_requests

MIB: Final = 1 << 20
PROGRAMS: Final = ("nbdkit", "nbdcopy", "qemu-img", "fio", "mkfs.ext4", "e2fsck")

KILLS_S: Final = 60
KILL_EVERY_S: Final = 5.0
KILLS_MIB: Final = 64
STALL_MAX_MS: Final = 500

LEAVES_MIB: Final = 256
LEAVES_S: Final = 30
LEAVES_AFTER_S: Final = 3.0
MOVES: Final = 3
MOVE_MIN: Final = 0.5
"""How fast pages shall move, against a copy through a loopback socket."""

IMAGE_MIB: Final = 256

REQUESTS_MIB: Final = 96  # more than nbdkit takes in one request
RANDOM_REQUESTS: Final = int(os.environ.get("REQUESTS", "500"))

FRAMES: Final = int(os.environ.get("FRAMES", "1000000"))
GROWTH_MAX_MIB: Final = 16


class Lines:
    """The lines that a check prints, each with the name of the check."""

    def __init__(self, name: str) -> None:
        self._name = name

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"{self._name}: {text}", flush=True)

    def goal(self, text: str, goal: str, is_met: bool) -> None:
        """Print a figure with its goal."""
        self.say(f"{text} (goal {goal}: {'met' if is_met else 'missed'})")


def require(is_true: object, why: str) -> None:
    """Fail a check: raise AssertionError unless something is true."""
    if not is_true:
        raise AssertionError(why)


def run(*words: str, timeout_s: float = 120.0) -> str:
    """Run a program to its end; raise AssertionError with its complaint if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s)
    require(done.returncode == 0, f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def clustered(place: Path, offer_mib: int, servers: int) -> Iterator[MemoryCluster]:
    """Run a cluster within the block."""
    with ExitStack() as stack:
        yield MemoryCluster(Home(place), stack, f"{offer_mib}MiB", servers)


# --- fio ------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How many requests fio has sent, and how long one took at most from fio to its reply."""

    requests: int
    longest_read_ms: float
    longest_write_ms: float


class VerifiedLoad:
    """Writes and verifies random pages by fio, with eight requests at a time."""

    def __init__(self, place: Path, uri: str, mib: int, seconds: int) -> None:
        self._report, self._log = place / "fio.json", place / "fio.log"
        self._seconds = seconds
        command = (
            "fio", "--name=x", "--ioengine=nbd", f"--uri={uri}", "--rw=randrw", "--bs=4k",
            "--iodepth=8", f"--size={mib}M", "--verify=crc32c", "--verify_fatal=1",
            "--verify_backlog=256", "--verify_state_save=0", "--time_based",
            f"--runtime={seconds}", "--output-format=json", f"--output={self._report}",
        )  # fmt: skip
        with self._log.open("w") as log:
            self._fio = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._fio.kill()
        self._fio.wait()

    def require_running(self) -> None:
        """Raise AssertionError if fio has ended."""
        require(self._fio.poll() is None, f"fio ended too early: {self._messages()}")

    def outcome(self) -> Outcome:
        """Wait for the end; raise AssertionError if fio has seen an error or a wrong byte."""
        status = self._fio.wait(self._seconds + 120.0)
        require(status == 0, f"fio: status {status}, {self._messages()}")
        text = self._report.read_text()
        job: Any = json.loads(text[text.index("{") :])["jobs"][0]
        require(job["error"] == 0, f"fio: error {job['error']}, {self._messages()}")
        reads, writes = job["read"], job["write"]
        return Outcome(
            reads["total_ios"] + writes["total_ios"],
            reads["clat_ns"]["max"] / 1e6, writes["clat_ns"]["max"] / 1e6,
        )  # fmt: skip

    def _messages(self) -> str:
        return self._log.read_text()[-2000:]


# --- servers are killed ---------------------------------------------------------------------------


def check_kills(place: Path, lines: Lines) -> None:
    """Kill a server every few seconds, and start another one, while fio verifies pages."""
    with clustered(place, 2 * KILLS_MIB, 3) as cluster:
        cluster.create("kills", KILLS_MIB, 2)
        export = cluster.export("kills")
        killed = 0
        begun_s = time.monotonic()
        with VerifiedLoad(place, export.uri, KILLS_MIB, KILLS_S) as load:
            while (next_s := begun_s + KILL_EVERY_S * (killed + 1)) < begun_s + KILLS_S:
                time.sleep(max(0.0, next_s - time.monotonic()))
                cluster.wait_for_copies("kills")
                load.require_running()
                cluster.kill(next(iter(cluster.servers)))
                killed += 1
                cluster.start()
            found = load.outcome()
        cluster.wait_for_copies("kills")
    require(killed >= KILLS_S / KILL_EVERY_S / 2, f"only {killed} servers were killed")
    lines.goal(
        f"{killed} servers killed in {KILLS_S} s, {found.requests:,} requests: no error, "
        "no wrong byte", "none", True,
    )  # fmt: skip
    lines.goal(
        f"longest read {found.longest_read_ms:.0f} ms, longest write "
        f"{found.longest_write_ms:.0f} ms", f"{STALL_MAX_MS} ms each",
        max(found.longest_read_ms, found.longest_write_ms) <= STALL_MAX_MS,
    )  # fmt: skip


# --- a server leaves ------------------------------------------------------------------------------

_SEND: Final = """
import socket, sys
content = memoryview(bytearray(b"x") * int(sys.argv[2]))
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connected:
    for at in range(0, len(content), 1 << 20):
        connected.sendall(content[at : at + (1 << 20)])
"""


class Move(NamedTuple):
    """Rates in bytes a second: of pages that moved, and of a copy of as many bytes by loopback."""

    rate: float
    copy_rate: float


def loopback_rate(size_bytes: int) -> float:
    """Return how many bytes a second two processes copy through a TCP socket."""
    content = memoryview(bytearray(b"y") * size_bytes)  # its pages exist
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        command = (sys.executable, "-c", _SEND, str(port), str(size_bytes))
        with subprocess.Popen(command):
            connected, _ = listening.accept()
            begun_s, at = time.monotonic(), 0
            with connected:
                while at < size_bytes:
                    count = connected.recv_into(content[at : at + MIB])
                    require(count, "the copy through the loopback ended early")
                    at += count
            return size_bytes / (time.monotonic() - begun_s)


def moved(cluster: MemoryCluster, name: str) -> Move:
    """Let the server of a volume leave, for a new one; compare with a copy just before."""
    size_bytes = int(cluster.volume(name)["size_bytes"])
    (server,) = cluster.servers
    cluster.start()
    copy_rate = loopback_rate(size_bytes)
    begun_s = time.monotonic()
    cluster.client.change("memory_drain", {"server": server})
    wait_for(lambda: server not in cluster.connected(), "the server that leaves", 120.0)
    rate = size_bytes / (time.monotonic() - begun_s)
    require(cluster.servers.pop(server).wait(20.0) == 0, "the server that left has failed")
    return Move(rate, copy_rate)


def check_leaves(place: Path, lines: Lines) -> None:
    """Let the only server of a volume leave, some times without other load, and beside fio."""
    image, back = place / "image", place / "back"
    half = LEAVES_MIB // 2 * MIB
    image.write_bytes(os.urandom(2 * half))
    with clustered(place, LEAVES_MIB + 32, 1) as cluster:
        cluster.create("leaves", LEAVES_MIB, 1)
        uri = cluster.export("leaves").uri
        run("nbdcopy", str(image), uri)
        alone = [moved(cluster, "leaves") for _ in range(MOVES)]
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(image), uri)
        with VerifiedLoad(place, uri, LEAVES_MIB // 2, LEAVES_S) as load:  # changes one half
            time.sleep(LEAVES_AFTER_S)
            busy = [moved(cluster, "leaves") for _ in range(MOVES)]
            load.require_running()
            requests = load.outcome().requests
        run("nbdcopy", uri, str(back))
    expected, found = image.read_bytes(), back.read_bytes()
    require(found[half:] == expected[half:], "pages have changed while they moved")
    lines.goal(f"{requests:,} requests while {MOVES} servers left, no error", "none", True)
    for what, moves in (("without other load", alone), ("beside fio", busy)):
        for move in moves:
            rates = f"{move.rate / 1e6:,.0f} MB/s, a copy by loopback {move.copy_rate / 1e6:,.0f}"
            lines.say(f"{LEAVES_MIB} MiB moved {what}: {rates} MB/s")
        ratio = statistics.median(move.rate / move.copy_rate for move in moves)
        lines.goal(f"{what}: {ratio:.2f} x the copy", f"{MOVE_MIN} x", ratio >= MOVE_MIN)


# --- images ---------------------------------------------------------------------------------------


def file_system(place: Path) -> Path:
    """Make an image of a file system with some files."""
    files, image = place / "files", place / "ext4"
    files.mkdir()
    chance = random.Random(1)
    for number in range(200):
        (files / str(number)).write_bytes(chance.randbytes(chance.randrange(500_000)))
    run("mkfs.ext4", "-q", "-d", str(files), str(image), f"{IMAGE_MIB}M")
    return image


def with_holes(place: Path) -> Path:
    """Make an image with random bytes and holes, neither of which begin at a page."""
    image = place / "holes"
    chance = random.Random(2)
    with image.open("wb") as out:
        out.truncate(IMAGE_MIB * MIB)
        while out.tell() < (IMAGE_MIB - 4) * MIB:
            out.seek(chance.randrange(2 * MIB), os.SEEK_CUR)
            out.write(chance.randbytes(chance.randrange(2 * MIB)))
    return image


def check_images(place: Path, lines: Lines) -> None:
    """Copy images to a volume and back, by nbdcopy and by qemu-img."""
    back = place / "back"
    with clustered(place, IMAGE_MIB + 32, 2) as cluster:
        cluster.create("images", IMAGE_MIB, 2)
        uri = cluster.export("images").uri
        raw = ("-f", "raw", "-O", "raw")
        ways: dict[str, tuple[Callable[[str], object], Callable[[], object]]] = {
            "nbdcopy": (
                lambda image: run("nbdcopy", image, uri),
                lambda: run("nbdcopy", uri, str(back)),
            ),
            "qemu-img convert": (
                lambda image: run("qemu-img", "convert", "-n", *raw, image, uri),
                lambda: run("qemu-img", "convert", *raw, uri, str(back)),
            ),
        }
        images = (file_system(place), with_holes(place))
        for name, (there, and_back) in ways.items():
            for image in images:  # in turns, so that each copy changes the volume
                begun_s = time.monotonic()
                there(str(image))
                there_s = time.monotonic() - begun_s
                run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(image), uri)
                and_back()
                require(filecmp.cmp(image, back, shallow=False), f"{name} back: other bytes")
                if image.name == "ext4":
                    run("e2fsck", "-f", "-n", str(back))
                back.unlink()
                lines.goal(
                    f"{IMAGE_MIB} MiB ({image.name}) by {name} in {there_s:.1f} s and back",
                    "identical", True,
                )  # fmt: skip


# --- requests -------------------------------------------------------------------------------------


def check_requests(place: Path, lines: Lines) -> None:
    """Send requests that no client should send; another client is served all the time."""
    image, back = place / "image", place / "back"
    image.write_bytes(random.Random(3).randbytes(REQUESTS_MIB * MIB))
    with clustered(place, REQUESTS_MIB + 32, 2) as cluster:
        cluster.create("requests", REQUESTS_MIB, 1)
        export = cluster.export("requests")
        run("nbdcopy", str(image), export.uri)
        expected = bytearray(image.read_bytes())
        with hostile_requests.Session(export.socket) as healthy:
            for kind, send in hostile_requests.KINDS.items():
                sent = send(export.socket, expected, RANDOM_REQUESTS)
                require(healthy.read(0, 4096) == expected[:4096], f"{kind}: another client")
                run("nbdcopy", export.uri, str(back))
                require(back.read_bytes() == expected, f"{kind}: the volume has other content")
                lines.goal(
                    f"{sent} {kind}: answered as the protocol says; only accepted requests have "
                    "changed the volume, and another client is served", "all", True,
                )  # fmt: skip
        require(Path(f"/proc/{export.nbdkit}").exists(), "nbdkit has ended")


# --- frames ---------------------------------------------------------------------------------------


def check_frames(place: Path, lines: Lines) -> None:
    """Send mutated frames to a memory server."""
    begun_s = time.monotonic()
    done = hostile_frames.attack(FRAMES, GROWTH_MAX_MIB * MIB)
    took_s = time.monotonic() - begun_s
    lines.goal(
        f"{done.frames:,} mutated frames on {done.connections:,} connections in {took_s:.0f} s: "
        "connections were closed, and nothing else has happened", "nothing else", True,
    )  # fmt: skip
    lines.say(
        f"{done.malformed:,} frames were malformed, {done.answered:,} were valid and got a "
        f"refusal or a page, and {done.unadmitted:,} came without a token"
    )
    lines.goal(
        f"the memory of the process grew by {done.growth_bytes >> 10:,} KiB",
        f"{GROWTH_MAX_MIB} MiB", True,
    )  # fmt: skip


CHECKS: Final[dict[str, Callable[[Path, Lines], None]]] = {
    "kills": check_kills,
    "leaves": check_leaves,
    "images": check_images,
    "requests": check_requests,
    "frames": check_frames,
}


def main() -> int:
    """Run the checks that the command line names, or all."""
    names = sys.argv[1:] or list(CHECKS)
    unknown = [name for name in names if name not in CHECKS]
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if unknown or missing:
        why = f"no check {unknown[0]}: {', '.join(CHECKS)}" if unknown else f"needs {missing[0]}"
        print(f"check-memory: {why}", file=sys.stderr)
        return 2
    status = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="ciel-memory-") as directory:
            try:
                CHECKS[name](Path(directory), Lines(name))
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                print(f"{name}: failed: {error}", flush=True)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
