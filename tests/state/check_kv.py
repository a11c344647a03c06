"""Checks of key-value bases that take too long for a test: `make check-kv`.

Shows KVB-3 and KVB-4. Real daemons are killed while clients use them, and get mutated frames. The
exit status is 1 if an acknowledged write is lost, a bulk put is seen in part, an increment takes
effect twice, a history is not linearizable, or a frame harms another client.

    KILLS=10000 HISTORIES=1000 FRAMES=1000000 python tests/state/check_kv.py [NAME ...]

The names are kills, histories and frames.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

sys.path.append(str(Path(__file__).parents[1] / "lib"))  # as for pytest

from ciel.state.bases.remote import RemoteBase
from ciel.state.bases.replies import Replies, ReplyError, pack_command
from ciel.state.batches import Delete, Increment, Put
from ciel.state.errors import KeyMissingError
from ciel.testing.state.histories import is_linearizable, record
from ciel_tests.kv_daemons import KvDaemon
from ciel_tests.nursery import Nursery

KILLS: Final = int(os.environ.get("KILLS", "10000"))
HISTORIES: Final = int(os.environ.get("HISTORIES", "1000"))
FRAMES: Final = int(os.environ.get("FRAMES", "1000000"))
WRITERS: Final = 4
BULK: Final = 50
ALIVE_MAX_S: Final = 0.1
"""The longest time for which a daemon serves before it is killed."""
GROWTH_MAX_KIB: Final = 64 << 10
PROGRESS_S: Final = 60.0


class WrongError(Exception):
    """A base broke its promise."""


class Progress:
    """Says how far a check is, now and then."""

    def __init__(self, name: str, whole: int) -> None:
        self._name = name
        self._whole = whole
        self._next_s = time.monotonic() + PROGRESS_S

    def reached(self, count: int) -> None:
        """Note how much is done; print it if nothing was printed for a while."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_S
            print(f"{self._name}: {count:,} of {self._whole:,}", flush=True)


# --- kills ----------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Writes rows that belong to it alone, and knows what the base must have."""

    def __init__(self, number: int, base: RemoteBase) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.writes = 0
        self.increments = 0
        self._head = b"w%d/" % number
        self._bulk = [b"bulk%d/%d" % (number, place) for place in range(BULK)]
        self._base = base
        self._random = Random(number)
        self._rows: dict[bytes, bytes] = {}
        self._generation = 0

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self._step()
                self.writes += 1
            self.check_all()
        except BaseException as error:
            self.error = error

    def _step(self) -> None:
        key = self._head + b"%d" % self._random.randrange(200)
        match self._random.randrange(5):
            case 0:
                self._rows[key] = value = self._random.randbytes(self._random.randrange(300))
                self._base.apply([Put(key, value)])
            case 1:
                try:
                    self._base.apply([Delete(key)])
                    was_there = True
                except KeyMissingError:
                    was_there = False
                if was_there != (self._rows.pop(key, None) is not None):
                    raise WrongError(f"{key!r} was there: {was_there}")
            case 2:
                self._base.apply([Increment(b"total")])
                self.increments += 1
            case 3:
                self._generation += 1
                self._base.apply([Put(key, b"%d" % self._generation) for key in self._bulk])
            case _:
                self._check(key)

    def _check(self, key: bytes) -> None:
        found = self._base.get(key)
        if found != self._rows.get(key):
            raise WrongError(f"{key!r} is {found!r}, but {self._rows.get(key)!r} was acknowledged")
        found_bulk = set(self._base.read(self._bulk))
        if found_bulk != {b"%d" % self._generation if self._generation else None}:
            raise WrongError(f"a bulk put has the generations {found_bulk}, not {self._generation}")

    def check_all(self) -> None:
        """Compare all rows."""
        found = dict(self._base.scan(self._head, self._head + b"\xff"))
        if found != self._rows:
            raise WrongError(
                f"{len(found.items() ^ self._rows.items())} rows of {self._head!r} differ"
            )


def check_kills(where: Path, nursery: Nursery) -> None:
    """Kill a daemon again and again while clients write."""
    daemon = KvDaemon(where / "base", "--sync", "interval", spawn=nursery.spawn)
    bases = [daemon.base(60.0) for _ in range(WRITERS)]
    writers = [Writer(number, base) for number, base in enumerate(bases)]
    for writer in writers:
        writer.start()
    random, began_s = Random(0), time.monotonic()
    progress = Progress("kills", KILLS)
    for kill in range(KILLS):
        time.sleep(random.random() * ALIVE_MAX_S)
        daemon.kill()
        daemon.start()
        progress.reached(kill + 1)
        if kill % 100 == 0:
            daemon.log.write_bytes(b"")
            errors = [writer.error for writer in writers if writer.error is not None]
            if errors:
                raise errors[0]
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer.join(120)
        if writer.error is not None:
            raise writer.error
    total, expected = bases[0].get(b"total"), sum(writer.increments for writer in writers)
    if total != b"%d" % expected:
        raise WrongError(f"{expected:,} increments have the sum {total!r}")
    for base in bases:
        base.close()
    daemon.end()
    writes, took_s = sum(writer.writes for writer in writers), time.monotonic() - began_s
    print(f"kills: {KILLS:,} in {took_s:.0f} s, {writes:,} operations: nothing lost, nothing twice")


# --- histories ------------------------------------------------------------------------------------


def check_histories(where: Path, nursery: Nursery) -> None:
    """Record histories while the daemon is killed, and check that they are linearizable."""
    daemon = KvDaemon(where / "base", "--sync", "off", spawn=nursery.spawn)
    bases = [daemon.base() for _ in range(5)]
    operations = kills = 0
    progress = Progress("histories", HISTORIES)
    for seed in range(HISTORIES):
        stop, killed = threading.Event(), count()
        killer = threading.Thread(target=_kill_until, args=(stop, daemon, Random(seed), killed))
        killer.start()
        history = record(list(bases), [b"%d/a" % seed, b"%d/b" % seed], 30, seed)
        stop.set()
        killer.join()
        operations, kills = operations + len(history), kills + next(killed)
        if not is_linearizable(history):
            raise WrongError(f"history {seed} is not linearizable: {history}")
        progress.reached(seed + 1)
    for base in bases:
        base.close()
    daemon.end()
    print(f"histories: {HISTORIES:,} with {operations:,} operations and {kills:,} kills: "
          "all linearizable")  # fmt: skip


def _kill_until(
    stop: threading.Event, daemon: KvDaemon, random: Random, killed: Iterator[int]
) -> None:
    while not stop.wait(random.random() * ALIVE_MAX_S):
        daemon.kill()
        daemon.start()
        next(killed)


# --- frames ---------------------------------------------------------------------------------------

COMMANDS: Final = """
GET x|SET x y|SET x y EX 10|INCRBY n 5|DEL x y|MGET x y z|MSET x 1 y 2|SCAN 0 COUNT 5|MULTI|EXEC
DISCARD|WATCH x|HSET h f v|HGETALL h|HDEL h f|ZADD z 1 m|ZRANGEBYSCORE z 0 5 WITHSCORES|PING|INFO
HELLO 3|COMMAND|CIEL.BATCH c 1 60 P x y 5 + n 3 S x y|EXPIRE x 5|CIEL.RANGE a b 10|CIEL.SNAPSHOT
CIEL.BATCH c 2 60 I a b 5 U a c D a N a T a 5 R a b c|CIEL.ROWS 1 a b 5|CIEL.WATCH x|KEYS x*
CIEL.AUTH kv 1|CLIENT SETNAME x
"""
CORPUS: Final = [
    pack_command(command.encode().split(b" "))
    for line in COMMANDS.strip().splitlines()
    for command in line.split("|")
]
FRAMES_EACH: Final = 6
"""A connection sends at most so many frames: after an error the daemon reads no more."""
REPLY_S: Final = 10.0


def mutated(random: Random, frame: bytes) -> bytes:
    """Return a frame with one to three changes."""
    content = bytearray(frame)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(content) + 1)
        match random.randrange(6):
            case 0 if at < len(content):
                content[at] ^= 1 << random.randrange(8)
            case 1 if at < len(content):
                content[at] = random.randrange(256)
            case 2:
                del content[at : at + random.randrange(1, 9)]
            case 3:
                content[at:at] = random.choice(
                    (b"\r\n", b"$-1\r\n", b"*1\r\n", b"9" * 12, b"\0", b"-")
                )
            case 4:
                content[at:at] = content[max(0, at - 9) : at]
            case _:
                content[at:at] = random.randbytes(random.randrange(1, 30))
    return bytes(content)


def check_frames(where: Path, nursery: Nursery) -> None:
    """Send mutated frames; look at the rows and the connections of another client meanwhile."""
    daemon = KvDaemon(where / "base", "--sync", "off", spawn=nursery.spawn)
    base, random = daemon.base(), Random(0)
    kept = {b"~kept/%d" % number: random.randbytes(50) for number in range(100)}
    base.apply([Put(key, value) for key, value in kept.items()])
    before_kib, sent, began_s = 0, 0, time.monotonic()
    progress = Progress("frames", FRAMES)
    while sent < FRAMES:
        progress.reached(sent)
        own = socket.create_connection(("127.0.0.1", daemon.port), REPLY_S)
        if random.randrange(16):
            own.sendall(pack_command([b"AUTH", daemon.key.text().encode()]))
            Replies(own).next()
        for _ in range(random.randrange(1, FRAMES_EACH)):
            sent += 1
            with suppress(OSError):  # the daemon may have closed the connection already
                own.sendall(mutated(random, random.choice(CORPUS)))
        _finish(own)
        if sent % 50_000 < FRAMES_EACH:
            if dict(base.scan(b"~kept/", b"~kept0")) != kept:
                raise WrongError("a mutated frame has changed rows that no frame names")
            used_kib = _resident_kib(daemon.pid)
            before_kib = before_kib or used_kib
            if used_kib > before_kib + GROWTH_MAX_KIB:
                raise WrongError(f"the daemon has grown from {before_kib:,} to {used_kib:,} KiB")
    if dict(base.scan(b"~kept/", b"~kept0")) != kept or base.apply([Increment(b"~n")]) != [1]:
        raise WrongError("the base does not work any more")
    base.close()
    if daemon.end():
        raise WrongError("the daemon did not end in order")
    took_s = time.monotonic() - began_s
    print(f"frames: {sent:,} in {took_s:.0f} s: no other client was harmed")


def _finish(own: socket.socket) -> None:
    """Read the replies to all frames, and close. Raises WrongError if the daemon does not end."""
    with own:
        try:
            own.shutdown(socket.SHUT_WR)
            while own.recv(1 << 20):
                pass
        except TimeoutError:
            raise WrongError("the daemon neither answers a mutated frame nor closes") from None
        except OSError:
            pass  # it has closed the connection


def _resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


CHECKS: Final[dict[str, Callable[[Path, Nursery], None]]] = {
    "kills": check_kills,
    "histories": check_histories,
    "frames": check_frames,
}


def main(names: list[str]) -> int:
    """Run the checks of some names, or all; return the exit status."""
    for name in names or CHECKS:
        where = Path(tempfile.mkdtemp(prefix="ciel-check-kv-"))
        try:
            with Nursery() as nursery:
                CHECKS[name](where, nursery)
        except (WrongError, ReplyError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        finally:
            shutil.rmtree(where, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
