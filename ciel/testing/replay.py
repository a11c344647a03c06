"""Replays the record in a dump of a daemon: `python -m ciel.testing.replay DUMP [--until SECONDS]`.

For a dump of a master, a new master service gets the messages that the master received, with a
clock that follows the recorded times. For a dump of a worker, a new state machine gets the messages
of its master, and the events that the worker's own reports imply. The replay stops where the record
stops, prints the state, and compares the messages that the machine and the daemon sent. With
`python -i -m`, the variable `machine` then refers to the machine.

A replay starts from an empty machine. So it needs all messages since the start of the daemon, but a
record contains only the latest mebibyte. It does not contain jobs that were submitted by HTTP.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from twisted.internet.task import Clock

from ciel.access.keys import Role
from ciel.core.errors import CielError
from ciel.core.events import (
    Ask,
    Change,
    DiskQueued,
    Heartbeat,
    InputsLost,
    Message,
    ObjectsStored,
    Received,
    SpawnTask,
    StoresReported,
    StreamsOpened,
    TaskReported,
)
from ciel.core.ids import TaskId
from ciel.core.offers.resources import Offer
from ciel.core.refs import Concrete
from ciel.master.journal import NullJournal
from ciel.master.service import CHECK_INTERVAL_S, MasterService
from ciel.master.state.invariants import problems
from ciel.master.state.machine import MasterMachine
from ciel.net.control import ACCEPTED, EXPECTED
from ciel.net.flight_recorder import (
    ENDED,
    RECEIVED,
    RECORD_TITLE,
    SENT,
    Batch,
    read_record,
)
from ciel.net.ticks import Ticks
from ciel.wire.errors import WireError
from ciel.wire.frames import FrameReader, Record
from ciel.wire.messages import decode_all
from ciel.wire.session import HELLO, PROOF, REFUSED, Hello
from ciel.worker.state.machine import WorkerMachine
from ciel.worker.state.orders import Phase

_OF_CONNECTIONS: Final = (HELLO, PROOF, REFUSED, "channel")
"""The kinds of record that are not messages."""
_NOT_COMPARED: Final = (Ask, Change, DiskQueued, Heartbeat, Received, StoresReported)
"""Messages that depend only on time, or that parts of the daemon outside of the machine send."""


class ReplayError(CielError):
    """A dump cannot be replayed."""


class Dump(NamedTuple):
    """The parts of a dump that a replay uses. `state`: the state of the daemon, as JSON."""

    state: dict[str, Any]
    dropped_count: int
    batches: list[Batch]

    @classmethod
    def read(cls, path: Path) -> Dump:
        """Read a dump; raises ReplayError."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            start = lines.index(f"--- {RECORD_TITLE} ---")
            first = lines.index("--- state ---") + 1
            state = json.loads("\n".join(lines[first : lines.index("", first)]))
            return cls(state, *read_record(lines[start + 1 :]))
        except OSError as error:
            raise ReplayError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ReplayError(f"{path} is not a dump with a record: {error}") from None


class Peer:
    """One recorded connection: decodes its batches, and collects what the machine sends to it."""

    failure = None
    is_congested = False

    def __init__(self, name: str, clock: Clock) -> None:
        self.address = name
        self.hello: Hello | None = None
        self.sent: list[Message] = []
        self.recorded: list[Message] = []
        self.has_ended = False
        self._clock = clock
        self._heard_s = clock.seconds()
        self._readers = {RECEIVED: FrameReader(), SENT: FrameReader()}

    @property
    def silent_s(self) -> float:
        return self._clock.seconds() - self._heard_s

    def records(self, sign: str, data: bytes) -> list[Record]:
        """Return the records of a batch that contain messages, and remember the hello."""
        self._heard_s = self._clock.seconds() if sign == RECEIVED else self._heard_s
        reader, found = self._readers[sign], []
        reader.feed(data)
        while (records := reader.next_frame()) is not None:
            for fields, payload in records:
                if fields[0] == HELLO and self.hello is None:
                    self.hello = Hello.from_fields(fields)
                elif fields[0] not in _OF_CONNECTIONS:
                    found.append((fields, payload))
        return found

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def flush(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...
    def turn_away(self) -> None: ...
    def refuse(self, reason: str) -> None: ...


class Replay:
    """Feeds batches to a machine, with a clock that follows their times."""

    def __init__(self, dump: Dump) -> None:
        self.clock = Clock()
        self.clock.rightNow = dump.batches[0].at_s if dump.batches else 0.0
        self.peers: dict[str, Peer] = {}

    def feed(self, batches: Iterable[Batch], until_s: float | None) -> int:
        """Feed batches; stop before the first one after `until_s`. Return their number."""
        count = 0
        for batch in batches:
            if until_s is not None and batch.at_s > until_s:
                break
            self._advance(batch.at_s)
            self._feed(batch)
            count += 1
        return count

    def _advance(self, to_s: float) -> None:
        """Advance the clock in steps: after a large step the service would assume a stall."""
        while (left_s := to_s - self.clock.seconds()) > CHECK_INTERVAL_S:
            self.clock.advance(CHECK_INTERVAL_S)
        self.clock.advance(max(left_s, 0.0))

    def _feed(self, batch: Batch) -> None:
        peer = self.peers.get(batch.connection)
        if peer is None:
            peer = self.peers[batch.connection] = Peer(batch.connection, self.clock)
        if batch.sign == ENDED:
            peer.has_ended = True
            self._closed(peer, batch.data.decode())
        else:
            was_open = peer.hello is not None
            records = peer.records(batch.sign, batch.data)
            if peer.hello is None:
                raise ReplayError(
                    f"the record of the connection {batch.connection} does not start with a hello"
                )
            if not was_open:
                self._opened(peer)
            if batch.sign == RECEIVED:
                self._received(peer, records)
            else:
                self._sent(peer, records)
        self.clock.advance(0.0)

    def _opened(self, peer: Peer) -> None: ...
    def _closed(self, peer: Peer, reason: str) -> None: ...
    def _received(self, peer: Peer, records: list[Record]) -> None: ...
    def _sent(self, peer: Peer, records: list[Record]) -> None: ...

    def differences(self) -> list[str]:
        """Compare the messages that the machine and the daemon sent, by their kinds.

        A daemon does not send what waits for its journal when a connection ends.
        """
        found = []
        for name, peer in self.peers.items():
            kinds = [
                Counter(type(m).__name__ for m in messages if not isinstance(m, _NOT_COMPARED))
                for messages in (peer.sent, peer.recorded)
            ]
            for kind in sorted(kinds[0].keys() | kinds[1].keys()):
                sent, recorded = kinds[0][kind], kinds[1][kind]
                if sent < recorded or (sent > recorded and not peer.has_ended):
                    found.append(
                        f"{name}: the machine sent {sent} {kind} messages, the daemon {recorded}"
                    )
        return found


class MasterReplay(Replay):
    """The replay of a master: its service and its state machine, without sockets."""

    def __init__(self, dump: Dump) -> None:
        super().__init__(dump)
        self.machine = MasterMachine(**dump.state["machine"])
        service: Any = MasterService  # its peers are the replay's
        self.service = service(
            self.clock, Ticks(self.clock), NullJournal(), {}, self.machine,
            probe_address=lambda *_: None,
        )  # fmt: skip
        self.service.epoch_s = self.machine.epoch_s = 0.0  # the clock shows the time since then

    def _opened(self, peer: Peer) -> None:
        self.service.peer_opened(peer)

    def _closed(self, peer: Peer, reason: str) -> None:
        self.service.peer_closed(peer, reason)

    def _received(self, peer: Peer, records: list[Record]) -> None:
        assert peer.hello is not None
        messages = decode_all(records, ACCEPTED[peer.hello.role])
        if messages:
            self.service.peer_said(peer, messages)

    def _sent(self, peer: Peer, records: list[Record]) -> None:
        assert peer.hello is not None
        peer.recorded += decode_all(records, EXPECTED[peer.hello.role])

    def state(self) -> dict[str, Any]:
        """Return the state in the form that it has in the dump of a master."""
        answers = {topic: self.service.answer(topic, {}) for topic in ("status", "jobs")}
        return answers | {"problems": list(problems(self.machine))}


class WorkerReplay(Replay):
    """The replay of a worker: its state machine, without the processes and transfers that it
    orders. Their results are derived from the worker's reports to the master.
    """

    def __init__(self, dump: Dump) -> None:
        super().__init__(dump)
        options: dict[str, Any] = dump.state["machine"]
        offers = [Offer(name, amount, tuple(of)) for name, amount, of in options["resources"]]
        self.machine = WorkerMachine(**options | {"resources": offers})

    def _opened(self, peer: Peer) -> None:
        self.machine.master_reached()

    def _closed(self, peer: Peer, reason: str) -> None:
        pass  # the session continues over the next connection

    def _received(self, peer: Peer, records: list[Record]) -> None:
        for message in decode_all(records, EXPECTED[Role.WORKER]):
            if not isinstance(message, Heartbeat | Received):
                self.machine.master_message(message, self.clock.seconds())
        self._take(peer)

    def _sent(self, peer: Peer, records: list[Record]) -> None:
        for message in decode_all(records, ACCEPTED[Role.WORKER]):
            peer.recorded.append(message)
            self._happened(message, self.clock.seconds())
        self._take(peer)

    def _happened(self, report: Any, now_s: float) -> None:
        """Pass the event to the machine that made the worker send a report."""
        machine = self.machine
        match report:
            case TaskReported(task, attempt, published, fault, run_s, exit_status):
                known = machine.attempts.get((task, attempt))
                if known is not None and known.phase in (Phase.RUNNING, Phase.ENDING):
                    machine.ended((task, attempt), published, fault, run_s, now_s, exit_status)
            case ObjectsStored(refs, kept):
                for ref in refs:
                    if not isinstance(ref, Concrete):
                        continue
                    if kept:
                        machine.add_retained({ref.id: ref.size_bytes})
                    else:
                        machine.fetched(ref.id, now_s, ref.size_bytes or 0)
            case SpawnTask(spec, refs, attempt, started, wanted):
                key = (TaskId(spec.parent), attempt)
                if started and wanted:
                    machine.child_started_inline(key, spec, refs, now_s)
                else:
                    machine.spawned(key, spec, refs, now_s, wanted=None if started else wanted)
            case StreamsOpened(task, attempt, refs):
                objects = tuple([ref.id for ref in refs])
                machine.streams_opened((task, attempt), objects, now_s)
            case InputsLost(task, attempt, losses, details):
                known = machine.attempts.get((task, attempt))
                if known is not None and known.phase is Phase.FETCHING:
                    for object_id in {object_id for object_id, _ in losses}:
                        gone = tuple([where for each, where in losses if each == object_id])
                        machine.fetch_failed(object_id, gone, details, now_s)
                elif known is not None:
                    machine.inputs_gone((task, attempt), losses, details, now_s)

    def _take(self, peer: Peer) -> None:
        """Take the orders and reports of the machine, as the service of a worker does."""
        now_s = self.clock.seconds()
        self.machine.tick(now_s)
        self.machine.take_orders()
        while reports := self.machine.take_reports(now_s + 1.0):
            for report in reports:
                peer.send(report)

    def state(self) -> dict[str, Any]:
        """Return the state in the form that it has in the dump of a worker."""
        machine = self.machine
        return {
            "slots": machine.slots, "slots_free": machine.slots_free,
            "queue": machine.queue_length,
            "attempts": [
                [*key, attempt.phase.value, attempt.spec.executor]
                for key, attempt in machine.attempts.items()
            ],
            "objects": len(machine.stored), "problems": list(machine.problems()),
        }  # fmt: skip


def replayed(dump: Dump, until_s: float | None = None) -> MasterReplay | WorkerReplay:
    """Replay a dump, up to a time since the epoch; raises ReplayError."""
    if dump.dropped_count:
        raise ReplayError(
            f"the dump lacks the first {dump.dropped_count} batches of events, so it cannot be "
            "replayed; write the dump sooner after the start of the daemon"
        )
    replay = WorkerReplay(dump) if "worker" in dump.state else MasterReplay(dump)
    try:
        replay.feed(dump.batches, until_s)
    except WireError as error:
        raise ReplayError(f"the record cannot be decoded: {error}") from None
    return replay


def main(argv: Sequence[str] | None = None) -> Any:
    """Replay the dump that the command line names; print the state, and return the machine."""
    parser = argparse.ArgumentParser(prog="python -m ciel.testing.replay", description=__doc__)
    parser.add_argument("dump", type=Path, help="a dump of `ciel debug dump` or of a daemon")
    parser.add_argument("--until", type=float, help="stop at this time, in seconds since the epoch")
    args = parser.parse_args(argv)
    try:
        dump = Dump.read(args.dump)
        replay = replayed(dump, args.until)
    except ReplayError as error:
        sys.exit(f"replay: {error}")
    print(json.dumps(replay.state(), indent=1, default=str))
    for line in replay.differences() if args.until is None else ():
        print(f"replay: {line}", file=sys.stderr)
    return replay.machine


if __name__ == "__main__":
    machine = main()
