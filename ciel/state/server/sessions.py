"""The daemon's decisions: what each command of each connection does, and replies.

`Server` owns the rows and the watches, `Session` what belongs to one connection. Neither has a
socket. A clock measures commands, and decides nothing. Commands on rows are functions (`values`,
`hashes`, `batch_commands`), and commands that concern the connection are methods of `Server`.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from itertools import count
from types import GeneratorType
from typing import Any, Final, NamedTuple

import ciel
from ciel.access.errors import MalformedKeyError
from ciel.access.keys import Key, KeyForRole, Role, Side, matches, proof
from ciel.state.bases.rows import Kind, kind_of
from ciel.state.batches import BATCH_MAX_BYTES, KEY_MAX_BYTES
from ciel.state.errors import BaseFullError, KvError, LimitError
from ciel.state.server import batch_commands, hashes, values
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.command import (
    SLICE_STEPS,
    Command,
    Slices,
    failure_of,
    integer,
    pattern,
    steps_of,
    syntax_error,
)
from ciel.state.server.errors import CommandError
from ciel.state.server.layers import Layers
from ciel.state.server.limits import DEFAULT, KvLimits
from ciel.state.server.log import CLEARED, Writes
from ciel.state.server.metrics import REDIS_VERSION, KvMetrics, OpenNow, Used
from ciel.state.server.resp import (
    KNOWN,
    NULL_ARRAY,
    OK,
    QUEUED,
    UNKNOWN,
    CommandReader,
    Failure,
    Push,
    Simple,
)
from ciel.state.server.view import RowsView

COMMANDS: Final[dict[bytes, Command]] = values.COMMANDS | hashes.COMMANDS | batch_commands.COMMANDS
WRITERS: Final = frozenset((Role.ADMIN, Role.SUBMIT, Role.WORKER, Role.KV))
"""The roles that may write; `Role.READ` may only read."""
QUEUE_MAX: Final = 10_000
QUEUE_MAX_BYTES: Final = BATCH_MAX_BYTES
"""The largest number of commands of a transaction, and of bytes of these."""
SNAPSHOTS_MAX: Final = 16
"""Of one connection. Each keeps LMDB from using pages again."""
SNAPSHOT_IDLE_US: Final = 60_000_000
WATCHES_MAX: Final = 10_000
CURSORS_MAX: Final = 1_000
CONFIGURED: Final = {b"save": b"", b"appendonly": b"yes"}
"""What CONFIG GET tells: redis-benchmark asks for it."""
SWEPT_KEYS: Final = 1_000
"""How many ended rows are removed together; it takes some 5 ms."""
GARBAGE_ROWS: Final = 2_000


class Held(NamedTuple):
    """A snapshot of a connection, and when it was used last."""

    layers: Layers
    used_us: int


class Session:
    """The state of a connection."""

    def __init__(self, number: int, *, may_use_password: bool) -> None:
        self.number = number
        self.may_use_password = may_use_password
        self.reader = CommandReader()
        self.role: Role | None = None
        self.protocol = 2
        self.name = b""
        self.queue: list[Callable[[], Any]] | None = None
        self.queue_bytes = 0
        self.is_queue_wrong = False
        self.watched: set[bytes] = set()
        self.is_dirty = False
        self.prefixes: set[bytes] = set()
        self.cursors: dict[int, bytes] = {}
        self.snapshots: dict[int, Held] = {}
        self.challenge: tuple[Role, bytes, bytes] | None = None
        self.is_ending = False


class Server:
    """Carries out commands. `pushes`: reports of changes that are due. `clock`: seconds, with which
    commands are measured.
    """

    def __init__(
        self, rows: BufferedRows, key_for_role: KeyForRole, limits: KvLimits = DEFAULT,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.limits = limits
        self.now_us = 0
        self.pushes: dict[tuple[Session, bytes], None] = {}
        self.sessions: set[Session] = set()
        names = COMMANDS.keys() | CONNECTION_COMMANDS.keys()
        self.metrics = KvMetrics(rows, limits, names, self._open_now)
        self._key_for_role = key_for_role
        self._clock = clock
        self._view = RowsView(rows.layers, limits, base=rows)
        self._watched: defaultdict[bytes, set[Session]] = defaultdict(set)
        self._prefixes: defaultdict[bytes, set[Session]] = defaultdict(set)
        self._lengths: tuple[int, ...] = ()  # of the prefixes
        self._numbers = count(1)

    def open(self, *, may_use_password: bool) -> Session:
        """Return the session of a new connection.

        `may_use_password`: nobody can read a password on its way.
        """
        session = Session(next(self._numbers), may_use_password=may_use_password)
        self.sessions.add(session)
        return session

    def close(self, session: Session) -> None:
        """Forget a connection."""
        self.sessions.discard(session)
        self._unwatch(session)
        self._end_prefixes(session)
        for held in session.snapshots.values():
            self.rows.drop(held.layers)
        session.snapshots.clear()

    def execute(self, session: Session, command: list[bytes]) -> Any:
        """Carry out a command; return its reply, or `Slices`.

        Raises OSError if the log cannot be written.
        """
        name = command[0].upper()
        used = self.metrics.commands.get(name, self.metrics.unknown)
        used.calls += 1
        started_s = self._clock()
        found = COMMANDS.get(name)
        args = command[1:]
        is_usual = session.queue is None and session.role in WRITERS
        if not is_usual or found is None or not found.least <= len(args) <= found.most:
            reply = self._execute_carefully(session, name, command, used)
        else:
            reply = self._run(found, args, used)
            if self._view.writes:
                reply = self._commit(reply, used)
        used.seconds += self._clock() - started_s
        return reply

    def _execute_carefully(
        self, session: Session, name: bytes, command: list[bytes], used: Used
    ) -> Any:
        try:
            if session.role is None and name not in FIRST_COMMANDS:
                raise CommandError("Authentication required.", "NOAUTH")
            call = self._prepared(session, name, command, used)
            if session.queue is None or name in IN_QUEUE:
                return call()
            self._queue(session, call, sum(map(len, command)))
            return QUEUED
        except KvError as error:
            return self.metrics.rejected(used, failure_of(error))

    def _queue(self, session: Session, call: Callable[[], Any], size_bytes: int) -> None:
        """Add a command to a transaction; raises LimitError."""
        assert session.queue is not None
        session.queue_bytes += size_bytes
        if len(session.queue) == QUEUE_MAX or session.queue_bytes > QUEUE_MAX_BYTES:
            session.is_queue_wrong = True
            raise LimitError(
                f"a transaction has at most {QUEUE_MAX:,} commands, and {QUEUE_MAX_BYTES:,} bytes"
            )
        session.queue.append(call)

    def _prepared(
        self, session: Session, name: bytes, command: list[bytes], used: Used
    ) -> Callable[[], Any]:
        """Return what carries out a command; raises CommandError."""
        args, own, found = command[1:], CONNECTION_COMMANDS.get(name), COMMANDS.get(name)
        if own is not None:
            return lambda: self._run_own(own, session, args, used)
        try:
            if found is None:
                shown = name[:64].decode(errors="replace")
                raise CommandError(f"unknown command '{shown}': ciel-kv does not have it")
            if found.is_write and session.role not in WRITERS:
                raise CommandError(f"the role {session.role} may read, and not write", "NOPERM")
            _check_count(found, name, len(args))
        except CommandError:
            session.is_queue_wrong = session.queue is not None
            raise
        return lambda: self._run_and_commit(session, found, args, used)

    def _run_and_commit(
        self, session: Session, command: Command, args: list[bytes], used: Used
    ) -> Any:
        reply = self._run(command, args, used)
        self._view.accept()
        if session.queue is None and self._view.done:
            return self._commit(reply, used)
        return reply

    def _run(self, command: Command, args: list[bytes], used: Used) -> Any:
        view = self._view
        view.now_us = self.now_us
        try:
            reply = command.function(view, args)
        except KvError as error:
            view.refuse()
            return self.metrics.failed(used, failure_of(error))
        return self._in_slices(reply, used) if isinstance(reply, GeneratorType) else reply

    def _run_own(
        self, own: Callable[[Server, Session, list[bytes]], Any], session: Session,
        args: list[bytes], used: Used,
    ) -> Any:  # fmt: skip
        """Carry out a command of a connection; return its reply, or its failure."""
        try:
            return own(self, session, args)
        except KvError as error:
            return self.metrics.failed(used, failure_of(error))

    def _in_slices(self, slices: Slices, used: Used) -> Slices:
        """Carry out the rest of a command, and measure it."""
        with closing(slices):
            while True:
                started_s = self._clock()
                try:
                    next(slices)
                except StopIteration as end:
                    return end.value
                except KvError as error:
                    return self.metrics.failed(used, failure_of(error))
                finally:
                    used.seconds += self._clock() - started_s
                yield

    def _commit(self, reply: Any, used: Used) -> Any:
        """Make what was written visible; return the reply, or a failure if the base is full."""
        writes, before = self._view.take()
        layers = self.rows.layers
        size = layers.size_with(writes, before)
        if size.bytes > layers.size.bytes:
            try:
                self.rows.check_room(size)
            except BaseFullError as error:
                return self.metrics.failed(used, failure_of(error))
        if self._watched or self._prefixes:
            self._report(writes)
        self.rows.write(writes, size)
        return reply

    def _report(self, writes: Writes) -> None:
        """Find the watches that some writes concern."""
        keys = list(writes)
        if CLEARED in writes:
            keys += [key for key in self._watched if self.rows.layers.row(key) is not None]
            for prefix, sessions in self._prefixes.items():
                self.pushes.update(dict.fromkeys((session, prefix) for session in sessions))
        for key in keys:
            for session in self._watched.get(key, ()):
                session.is_dirty = True
            for length in self._lengths:
                for session in self._prefixes.get(prefix := key[:length], ()):
                    self.pushes[session, prefix] = None

    def sweep(self) -> None:
        """Remove rows that have ended, garbage, and snapshots that nobody uses."""
        view = self._view
        view.now_us = self.now_us
        ended = set(self.rows.ended(SWEPT_KEYS))
        for key in ended:
            view.write(key, None)
        self.metrics.ended_rows += len(ended)
        view.remove_garbage(GARBAGE_ROWS)
        if view.writes:
            self._commit(None, self.metrics.unknown)
        self.rows.retry()
        for session in self.sessions:
            for number, held in list(session.snapshots.items()):
                if held.used_us + SNAPSHOT_IDLE_US < self.now_us:
                    self.rows.drop(held.layers)
                    del session.snapshots[number]

    def _open_now(self) -> OpenNow:
        watches = sum(len(session.watched) + len(session.prefixes) for session in self.sessions)
        return OpenNow(len(self.sessions), watches)

    # --- who --------------------------------------------------------------------------------------

    def authenticate(self, session: Session, text: bytes) -> None:
        """Give a connection the role of a key; raises CommandError."""
        if not session.may_use_password:
            raise CommandError(
                "passwords are not accepted from other hosts, since the network could read them; "
                "see ciel-kv --passwords", "WRONGPASS",
            )  # fmt: skip
        try:
            offered = Key.from_text(text.decode())
        except (MalformedKeyError, UnicodeDecodeError):
            offered = None
        if offered is None or self._key_for_role(offered.role) != offered:
            raise CommandError("invalid password, which is the key of a role", "WRONGPASS")
        self._admit(session, offered.role)

    def _admit(self, session: Session, role: Role) -> None:
        session.role = role
        session.reader.limits = KNOWN

    def auth(self, session: Session, args: list[bytes]) -> Any:
        if not 1 <= len(args) <= 2:
            raise syntax_error()
        self.authenticate(session, args[-1])
        return OK

    def hello(self, session: Session, args: list[bytes]) -> Any:
        """HELLO [protocol [AUTH user password] [SETNAME name]]."""
        protocol = integer(args[0]) if args else session.protocol
        if protocol not in (2, 3):
            raise CommandError("unsupported protocol version", "NOPROTO")
        rest = args[1:]
        while rest:
            option = rest.pop(0).upper()
            if option == b"AUTH" and len(rest) >= 2:
                self.authenticate(session, rest[1])
                del rest[:2]
            elif option == b"SETNAME" and rest:
                session.name = rest.pop(0)
            else:
                raise syntax_error()
        if session.role is None:
            raise CommandError("HELLO must be called with the client already authenticated, "
                               "otherwise the HELLO <proto> AUTH <user> <pass> option can be used "
                               "to authenticate the client and select the RESP protocol version "
                               "at the same time", "NOAUTH")  # fmt: skip
        session.protocol = protocol
        return {
            "server": "redis", "version": REDIS_VERSION, "proto": protocol, "id": session.number,
            "mode": "standalone", "role": "master", "modules": [], "ciel": ciel.__version__,
        }  # fmt: skip

    def challenge(self, session: Session, args: list[bytes]) -> Any:
        """CIEL.AUTH role nonce: return a nonce, and the proof that this server has the key."""
        if len(args) != 2 or len(args[1]) != 32:
            raise syntax_error()
        try:
            role = Role(args[0].decode(errors="replace"))
        except ValueError:
            raise CommandError("there is no such role", "WRONGPASS") from None
        key = self._key_for_role(role)
        if key is None:
            raise CommandError(f"the role {role} has no access to state", "WRONGPASS")
        nonce = secrets.token_bytes(32)
        session.challenge = role, args[1], nonce
        return [nonce, proof(key, role, Side.ACCEPTOR, args[1], nonce)]

    def prove(self, session: Session, args: list[bytes]) -> Any:
        """CIEL.PROVE proof: authenticate by the proof for the challenge before."""
        challenge, session.challenge = session.challenge, None
        if challenge is None or len(args) != 1:
            raise syntax_error()
        role, theirs, ours = challenge
        key = self._key_for_role(role)
        if key is None or not matches(proof(key, role, Side.INITIATOR, theirs, ours), args[0]):
            raise CommandError("the proof is wrong: the client has another key", "WRONGPASS")
        self._admit(session, role)
        return OK

    # --- transactions -----------------------------------------------------------------------------

    def multi(self, session: Session, args: list[bytes]) -> Any:
        if session.queue is not None:
            raise CommandError("MULTI calls can not be nested")
        session.queue, session.queue_bytes, session.is_queue_wrong = [], 0, False
        return OK

    def exec_(self, session: Session, args: list[bytes]) -> Any:
        queue, is_dirty = session.queue, session.is_dirty
        if queue is None:
            raise CommandError("EXEC without MULTI")
        session.queue = None
        self._unwatch(session)
        if session.is_queue_wrong:
            raise CommandError("Transaction discarded because of previous errors.", "EXECABORT")
        if is_dirty:
            return NULL_ARRAY
        session.queue = []  # so that nothing is committed before all is carried out
        replies: list[Any] = []
        left_bytes = self.limits.reply_bytes
        for call in queue:
            reply = call()
            if (size_bytes := _size_of(reply)) > left_bytes:
                reply, size_bytes = _too_large(self.limits), 0
            left_bytes -= size_bytes
            replies.append(reply)
        session.queue = None
        used = self.metrics.commands[b"EXEC"]
        reply = self._commit(replies, used) if self._view.done else replies
        if reply is replies and any(isinstance(part, GeneratorType) for part in replies):
            return self._in_slices(_each(replies), used)
        return reply

    def discard(self, session: Session, args: list[bytes]) -> Any:
        if session.queue is None:
            raise CommandError("DISCARD without MULTI")
        session.queue = None
        self._unwatch(session)
        return OK

    def watch(self, session: Session, args: list[bytes]) -> Any:
        if session.queue is not None:
            raise CommandError("WATCH inside MULTI is not allowed")
        if not args:
            raise syntax_error()
        if len(session.watched) + len(args) > WATCHES_MAX:
            raise LimitError(f"a connection watches at most {WATCHES_MAX:,} keys")
        if max(map(len, args)) > KEY_MAX_BYTES:
            raise LimitError(f"a key has at most {KEY_MAX_BYTES} bytes")
        for key in args:
            session.watched.add(key)
            self._watched[key].add(session)
        return OK

    def unwatch(self, session: Session, args: list[bytes]) -> Any:
        self._unwatch(session)
        return OK

    def _unwatch(self, session: Session) -> None:
        for key in session.watched:
            self._watched[key].discard(session)
            if not self._watched[key]:
                del self._watched[key]
        session.watched.clear()
        session.is_dirty = False

    # --- watches of prefixes ----------------------------------------------------------------------

    def watch_prefix(self, session: Session, args: list[bytes]) -> Any:
        """CIEL.WATCH prefix: push ["ciel.changed", prefix] when such a key has changed."""
        if len(args) != 1:
            raise syntax_error()
        if len(session.prefixes) == WATCHES_MAX:
            raise LimitError(f"a connection watches at most {WATCHES_MAX:,} prefixes")
        if len(args[0]) > KEY_MAX_BYTES:
            raise LimitError(f"a prefix has at most {KEY_MAX_BYTES} bytes")
        session.prefixes.add(args[0])
        self._prefixes[args[0]].add(session)
        self._lengths = tuple({len(prefix) for prefix in self._prefixes})
        return OK

    def _end_prefixes(self, session: Session) -> None:
        for prefix in session.prefixes:
            self._prefixes[prefix].discard(session)
            if not self._prefixes[prefix]:
                del self._prefixes[prefix]
        session.prefixes.clear()
        self._lengths = tuple({len(prefix) for prefix in self._prefixes})

    def take_pushes(self) -> list[tuple[Session, Push]]:
        """Return the reports that are due, each once."""
        pushes, self.pushes = self.pushes, {}
        return [(session, Push([b"ciel.changed", prefix])) for session, prefix in pushes]

    # --- snapshots --------------------------------------------------------------------------------

    def snapshot(self, session: Session, args: list[bytes]) -> Any:
        """CIEL.SNAPSHOT: return the number of a snapshot of this moment."""
        if len(session.snapshots) == SNAPSHOTS_MAX:
            raise LimitError(f"a connection has at most {SNAPSHOTS_MAX} snapshots")
        number = next(self._numbers)
        session.snapshots[number] = Held(self.rows.snapshot(), self.now_us)
        return number

    def snapshot_rows(self, session: Session, args: list[bytes]) -> Any:
        """CIEL.ROWS snapshot first last count, as CIEL.RANGE."""
        if len(args) != 4:
            raise syntax_error()
        return batch_commands.read_range(self._held(session, args[0]), args[1:])

    def snapshot_get(self, session: Session, args: list[bytes]) -> Any:
        """CIEL.GET snapshot key …: return the values."""
        rows = self._held(session, args[0] if args else b"")
        return values.mget(rows, args[1:])

    def drop(self, session: Session, args: list[bytes]) -> Any:
        """CIEL.DROP snapshot."""
        self._held(session, args[0] if args else b"")
        self.rows.drop(session.snapshots.pop(integer(args[0])).layers)
        return OK

    def _held(self, session: Session, text: bytes) -> RowsView:
        number = integer(text)
        held = session.snapshots.get(number)
        if held is None:
            raise CommandError(
                "there is no such snapshot: it was dropped, or not used for a minute", "SNAPSHOT"
            )
        session.snapshots[number] = held._replace(used_us=self.now_us)
        return RowsView(held.layers, self.limits, self.now_us)

    # --- the rest ---------------------------------------------------------------------------------

    def ping(self, session: Session, args: list[bytes]) -> Any:
        return args[0] if args else Simple(b"PONG")

    def echo(self, session: Session, args: list[bytes]) -> Any:
        if len(args) != 1:
            raise syntax_error()
        return args[0]

    def select(self, session: Session, args: list[bytes]) -> Any:
        if args != [b"0"]:
            raise CommandError("DB index is out of range: ciel-kv has only number 0")
        return OK

    def quit(self, session: Session, args: list[bytes]) -> Any:
        session.is_ending = True
        return OK

    def reset(self, session: Session, args: list[bytes]) -> Any:
        session.queue, session.protocol, session.role = None, 2, None
        session.reader.limits = UNKNOWN
        self._unwatch(session)
        self._end_prefixes(session)
        return Simple(b"RESET")

    def client(self, session: Session, args: list[bytes]) -> Any:
        match [args[0].upper() if args else b"", *args[1:]]:
            case [b"SETNAME", name]:
                session.name = name
            case [b"GETNAME"]:
                return session.name or None
            case [b"ID"]:
                return session.number
            case [b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH", *_]:
                pass
            case _:
                raise syntax_error()
        return OK

    def config(self, session: Session, args: list[bytes]) -> Any:
        if not args or args[0].upper() != b"GET":
            raise CommandError("ciel-kv is configured by its command line")
        return {name: value for name, value in CONFIGURED.items() if name in args[1:]}

    def command(self, session: Session, args: list[bytes]) -> Any:
        """COMMAND: the names, with as little as clients need."""
        names = sorted(COMMANDS.keys() | CONNECTION_COMMANDS.keys())
        if args and args[0].upper() == b"COUNT":
            return len(names)
        return [] if args else [[name.lower(), -1, [], 0, 0, 0] for name in names]

    def info(self, session: Session, args: list[bytes]) -> Any:
        """INFO [section …]."""
        return self.metrics.info(arg.decode(errors="replace") for arg in args)

    def scan(self, session: Session, args: list[bytes]) -> Any:
        """SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]."""
        if len(args) % 2 == 0:
            raise syntax_error()
        options = {
            name.upper(): args[place + 2] for place, name in enumerate(args[1:]) if place % 2 == 0
        }
        if options.keys() - {b"MATCH", b"COUNT", b"TYPE"}:
            raise syntax_error()
        cursor, most = integer(args[0]), integer(options.get(b"COUNT", b"10"))
        if most < 1:
            raise syntax_error()
        first = session.cursors.pop(cursor, None) if cursor else b""
        if first is None:
            raise CommandError("invalid cursor")
        matches_ = pattern(options.get(b"MATCH", b"*")).match
        kind = options.get(b"TYPE", b"").lower()
        found: list[bytes] = []
        steps = 0
        self._view.now_us = self.now_us
        for seen, (key, row) in enumerate(self._view.user_rows(first)):
            if seen == most or steps >= SLICE_STEPS:
                number = next(self._numbers)
                session.cursors[number] = key
                if len(session.cursors) > CURSORS_MAX:
                    del session.cursors[next(iter(session.cursors))]
                return [b"%d" % number, found]
            steps += steps_of(row)
            is_kind = not kind or values.TYPES[Kind(kind_of(row))] == kind
            if is_kind and matches_(key.decode("latin-1")):
                found.append(key)
        return [b"0", found]


def _each(replies: list[Any]) -> Slices:
    """Carry out those of some commands that take several slices."""
    for place, reply in enumerate(replies):
        if isinstance(reply, GeneratorType):
            replies[place] = yield from reply
    return replies


def _size_of(reply: Any) -> int:
    """Return about how many bytes a reply has."""
    if isinstance(reply, bytes):
        return len(reply)
    if isinstance(reply, dict):
        return sum(len(name) + len(value) for name, value in reply.items())
    return sum(map(_size_of, reply)) if isinstance(reply, list) else 0


def _too_large(limits: KvLimits) -> Failure:
    return Failure(
        "LIMIT", f"replies have at most {limits.reply_bytes:,} bytes: read less at a time"
    )


def _check_count(command: Command, name: bytes, arguments: int) -> None:
    if not command.least <= arguments <= command.most:
        shown = name.decode(errors="replace").lower()
        raise CommandError(f"wrong number of arguments for '{shown}' command")


CONNECTION_COMMANDS: Final[dict[bytes, Callable[[Server, Session, list[bytes]], Any]]] = {
    b"AUTH": Server.auth, b"HELLO": Server.hello, b"CIEL.AUTH": Server.challenge,
    b"CIEL.PROVE": Server.prove, b"MULTI": Server.multi, b"EXEC": Server.exec_,
    b"DISCARD": Server.discard, b"WATCH": Server.watch, b"UNWATCH": Server.unwatch,
    b"CIEL.WATCH": Server.watch_prefix, b"CIEL.SNAPSHOT": Server.snapshot,
    b"CIEL.ROWS": Server.snapshot_rows, b"CIEL.GET": Server.snapshot_get, b"CIEL.DROP": Server.drop,
    b"PING": Server.ping, b"ECHO": Server.echo, b"SELECT": Server.select, b"QUIT": Server.quit,
    b"RESET": Server.reset, b"CLIENT": Server.client, b"CONFIG": Server.config,
    b"COMMAND": Server.command, b"INFO": Server.info, b"SCAN": Server.scan,
}  # fmt: skip
FIRST_COMMANDS: Final = frozenset(
    (b"AUTH", b"HELLO", b"CIEL.AUTH", b"CIEL.PROVE", b"QUIT", b"RESET")
)
"""The commands that a client may use before it is authenticated."""
IN_QUEUE: Final = frozenset((b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"QUIT", b"RESET"))
"""The commands that a transaction does not queue."""
