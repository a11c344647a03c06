"""Tests channels to real programs, some of which violate the protocol."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure as TwistedFailure

from ciel.testing.homes import descriptors_of, private_bytes, wait_for
from ciel.wire.calls import Call, encode_call
from ciel.wire.errors import EncodeError
from ciel.wire.limits import CALL_MAX_BYTES
from ciel.worker.interactive.channel import ProgramChannel, send_descriptor

# The first lines of every program. They read its four arguments, and open nothing.
PROGRAM = """
import json, os, struct, sys, time
_, said, _, told = sys.argv[1:]

def open_both():
    global o, i
    o = os.open(said, os.O_WRONLY)
    i = os.open(told, os.O_RDONLY)

def write(data):
    while data:
        data = data[os.write(o, data):]

def say(method, args):
    payload = json.dumps([method, args]).encode()
    write(struct.pack(">I", len(payload)) + payload)

def take(count):
    data = b""
    while len(data) < count:
        data += os.read(i, count - len(data)) or sys.exit("the end")
    return data

def hear():
    return json.loads(take(*struct.unpack(">I", take(4))))

"""
START = ("start_task", {"proc_pargs": [1]})
EXIT = Call("exit", {"keep_process": "no"})


class Conversation:
    """A channel, the calls that it received, and the programs at its other end."""

    def __init__(self, in_reactor: Any, directory: Path) -> None:
        self.in_reactor = in_reactor
        self.directory = directory
        self.came: list[list[Call]] = []
        self.broke: list[str] = []
        self.answer: Callable[[ProgramChannel, Call], None] = lambda channel, call: None
        self.programs: list[subprocess.Popen[bytes]] = []
        directory.mkdir(mode=0o700)
        self.channel: ProgramChannel = in_reactor(
            ProgramChannel, in_reactor.reactor, str(directory), self
        )

    def calls_came(self, channel: ProgramChannel, calls: list[Call]) -> None:
        assert channel is self.channel
        assert calls
        assert not self.broke
        self.came.append(calls)
        for call in calls:
            self.answer(channel, call)

    def channel_broke(self, channel: ProgramChannel, why: str) -> None:
        assert channel is self.channel
        self.broke.append(why)

    @property
    def calls(self) -> list[Call]:
        return [call for calls in self.came for call in calls]

    def start(self, script: str) -> subprocess.Popen[bytes]:
        program = subprocess.Popen(
            [sys.executable, "-IS", "-c", PROGRAM + script, *self.channel.arguments]
        )
        self.programs.append(program)
        return program

    def say(self, method: str, args: Any) -> None:
        self.in_reactor(self.channel.say, method, args)

    def wait_for_calls(self, count: int) -> list[Call]:
        wait_for(lambda: len(self.calls) >= count or self.broke, f"{count} calls")
        assert not self.broke
        assert len(self.calls) == count
        return self.calls

    def wait_for_break(self) -> str:
        wait_for(lambda: self.broke, "the channel's end")
        (why,) = self.broke
        assert not list(self.directory.iterdir())
        return why

    def end(self) -> None:
        self.in_reactor(self.channel.close)
        for program in self.programs:
            program.kill()
            program.wait()


@pytest.fixture
def talk(in_reactor: Any, tmp_path: Path) -> Iterator[Conversation]:
    before = descriptors_of(os.getpid())
    conversation = Conversation(in_reactor, tmp_path / "channel")
    yield conversation
    conversation.end()
    wait_for(lambda: descriptors_of(os.getpid()) <= before, "closed descriptors")
    assert not in_reactor(in_reactor.reactor.getWriters)


# --- a conversation -------------------------------------------------------------------------------


@pytest.mark.requirement("CIB-2")
def test_what_is_said_arrives_on_both_sides(talk: Conversation) -> None:
    talk.answer = lambda channel, call: channel.say(call.method, {"n": call.args["n"] + 1})
    talk.say(*START)
    assert not talk.channel.has_spoken
    talk.start("open_both(); hear(); say('a', {'n': 1}); say('b', hear()[1]); time.sleep(60)")
    assert talk.wait_for_calls(2) == [Call("a", {"n": 1}), Call("b", {"n": 2})]
    assert talk.channel.has_spoken


def test_the_fifos_are_private_and_gone_when_the_channel_is_closed(talk: Conversation) -> None:
    _, said, _, told = talk.channel.arguments
    assert talk.channel.arguments == ("--write-fifo", said, "--read-fifo", told)
    assert {said, told} == {f"{talk.directory}/from_process", f"{talk.directory}/to_process"}
    modes = {os.stat(path).st_mode for path in (said, told)}
    assert modes == {stat.S_IFIFO | 0o600}
    for _ in range(2):
        talk.in_reactor(talk.channel.close)
        assert not list(talk.directory.iterdir())
    talk.say(*START)
    assert not talk.broke


def test_a_channel_that_cannot_be_made_leaves_nothing_open(in_reactor: Any, tmp_path: Path) -> None:
    before = descriptors_of(os.getpid())
    with pytest.raises(FileNotFoundError):
        in_reactor(ProgramChannel, in_reactor.reactor, str(tmp_path / "missing"), None)
    (tmp_path / "to_process").touch()
    with pytest.raises(FileExistsError):
        in_reactor(ProgramChannel, in_reactor.reactor, str(tmp_path), None)
    assert descriptors_of(os.getpid()) == before


@pytest.mark.parametrize(
    "opening",
    [
        "o = os.open(said, os.O_WRONLY); i = os.open(told, os.O_RDONLY)",
        "i = os.open(told, os.O_RDONLY); o = os.open(said, os.O_WRONLY)",
        "i = os.open(told, os.O_RDWR); o = os.open(said, os.O_RDWR)",
    ],
    ids=["writing first", "reading first", "for both"],
)
@pytest.mark.parametrize("when", ["at once", "late"])
def test_a_program_may_open_its_ends_in_any_order(
    talk: Conversation, opening: str, when: str
) -> None:
    if when == "at once":
        talk.say(*START)
    program = talk.start(f"{opening}; say('echo', hear()); say('exit', hear()); time.sleep(60)")
    if when == "late":
        wait_for(lambda: descriptors_of(program.pid) == 5, "both to be open")
        talk.say(*START)
    talk.wait_for_calls(1)
    talk.say("last", {})
    assert talk.wait_for_calls(2)[1] == Call("exit", ["last", {}])


def test_calls_that_came_together_are_given_together(talk: Conversation) -> None:
    talk.start(
        "open_both(); write(b''.join(struct.pack('>I', 8) + b'[\"a\",%d]' % n for n in (11, 12)))"
        "; time.sleep(60)"
    )
    talk.wait_for_calls(2)
    assert talk.came == [[Call("a", 11), Call("a", 12)]]


def test_a_call_may_come_byte_by_byte(talk: Conversation) -> None:
    talk.start("open_both()\nfor b in b'\\0\\0\\0\\x0a[\"a\", 101]':\n  write(bytes([b]))\nhear()")
    assert talk.wait_for_calls(1) == [Call("a", 101)]


def test_a_program_may_speak_before_it_listens(talk: Conversation) -> None:
    talk.say(*START)
    talk.start(
        "o = os.open(said, os.O_WRONLY); say('log', 1); say('log', 2); time.sleep(0.1)\n"
        "i = os.open(told, os.O_RDONLY); say('echo', hear()); say('echo', hear()); time.sleep(60)"
    )
    talk.wait_for_calls(3)
    talk.say("more", {})
    assert talk.wait_for_calls(4)[2:] == [Call("echo", list(START)), Call("echo", ["more", {}])]


def test_much_may_be_said_in_both_directions(talk: Conversation) -> None:
    talk.say("start_task", "x" * 10_000_000)
    talk.say("next", {})
    talk.start("open_both(); say('echo', hear()[1] + 'y'); say('echo', hear()); time.sleep(60)")
    big, small = talk.wait_for_calls(2)
    assert big.args == "x" * 10_000_000 + "y"
    assert small.args == ["next", {}]


@pytest.mark.slow
def test_the_reactor_is_free_while_a_program_talks_without_end(talk: Conversation) -> None:
    talk.start("open_both()\nwhile True: write(b'\\0\\0\\0\\7[\"a\",1]' * 9000)")
    wait_for(lambda: talk.came, "the first of it")
    longest_s = 0.0
    for _ in range(20):
        started_s = time.monotonic()
        talk.in_reactor(lambda: None)
        longest_s = max(longest_s, time.monotonic() - started_s)
    assert longest_s < 10
    talk.end()


def test_whether_a_program_has_taken_what_it_was_told_is_known(talk: Conversation) -> None:
    talk.say("start_task", "x" * 200_000)
    assert not talk.in_reactor(lambda: talk.channel.has_listened)
    talk.start("open_both(); say('a', 1); hear(); say('a', 2); hear(); time.sleep(60)")
    talk.wait_for_calls(2)
    assert talk.in_reactor(lambda: talk.channel.has_listened)
    talk.in_reactor(talk.channel.close)
    assert not talk.channel.has_listened


def test_of_a_program_that_ended_it_is_known_whether_its_last_words_are_to_come(
    talk: Conversation,
) -> None:
    def will_break_after(script: str) -> bool:
        return talk.start(script).wait(20) == 0 and talk.channel.will_break

    assert not talk.in_reactor(will_break_after, "")
    assert not talk.in_reactor(will_break_after, "i = os.open(told, os.O_RDONLY)")
    assert talk.in_reactor(will_break_after, "open_both(); say('a', 1)")
    talk.wait_for_break()
    assert talk.calls == [Call("a", 1)]
    assert not talk.channel.will_break


def test_a_call_without_a_form_is_not_said(talk: Conversation) -> None:
    with pytest.raises(EncodeError):
        talk.say("start_task", object())
    talk.say(*START)
    talk.start("open_both(); say('echo', hear()); time.sleep(60)")
    assert talk.wait_for_calls(1) == [Call("echo", list(START))]


def test_the_owner_may_close_while_it_takes_calls(talk: Conversation) -> None:
    talk.answer = lambda channel, call: channel.close()
    talk.start("open_both(); say('exit', {}); write(b'garbage'); time.sleep(60)")
    talk.wait_for_calls(1)
    assert not list(talk.directory.iterdir())


def test_closed_by_us_the_program_reads_what_it_was_told_and_then_the_end(
    talk: Conversation,
) -> None:
    program = talk.start("open_both(); say('a', hear()); i and hear() and hear()")
    talk.say(*START)
    talk.wait_for_calls(1)
    talk.say("die", {"reason": "idle"})
    talk.in_reactor(talk.channel.close)
    assert program.wait(20) == 1
    assert not talk.broke


# --- what can go wrong ----------------------------------------------------------------------------


def test_a_program_that_never_opens_is_the_owners_affair(talk: Conversation) -> None:
    talk.say(*START)
    assert talk.start("").wait(20) == 0
    time.sleep(0.05)
    assert not talk.came
    assert not talk.broke


BREAKS = {
    "ends at once": ("open_both()", "closed the FIFO that it writes to, or ended"),
    "dies": ("open_both(); hear(); os.kill(os.getpid(), 9)", "or ended"),
    "writes nothing more": ("open_both(); hear(); os.close(o); time.sleep(60)", "it writes to"),
    "dies in a call": (
        "open_both(); write(b'\\0\\0\\1\\0[\"publish'); os.kill(os.getpid(), 9)",
        "in the middle of a call: only 9 of the 256 bytes of a call ('[\"publish') were received"
    ),
    "dies in a later call": (
        "open_both(); hear(); say('a', 1); write(b'\\0\\0\\0\\7['); os.kill(os.getpid(), 9)",
        "in the middle of a call: only 1 of the 7 bytes",
    ),
    "dies in a length": ("open_both(); write(b'\\0\\0')", r"2 of the 4 bytes of a call's length"),
    "prints": ("open_both(); write(b'hello, world\\n'); time.sleep(60)", "is the text 'hell'"),
    "announces too much": (
        "open_both(); write(struct.pack('>I', 17 << 20)); time.sleep(60)",
        f"a call of 17825792 bytes (the bytes 01 10 00 00), but the limit is {CALL_MAX_BYTES}",
    ),
    "talks no JSON": ("open_both(); write(b'\\0\\0\\0\\2hi'); time.sleep(60)", "('hi'): not JSON"),
    "writes a long line": ("open_both(); write(b'x' * 10_000_000)", "is the text 'xxxx'"),
    "talks otherwise": ("open_both(); write(b'\\0\\0\\0\\2{}'); time.sleep(60)", "('{}'): not a"),
}  # fmt: skip


@pytest.mark.parametrize("script, why", BREAKS.values(), ids=BREAKS.keys())
def test_what_goes_wrong_is_told_once_and_says_what_it_was(
    talk: Conversation, script: str, why: str
) -> None:
    talk.say(*START)
    talk.start(script)
    assert why in talk.wait_for_break()
    assert talk.calls in ([], [Call("a", 1)])
    talk.say("more", {})
    talk.in_reactor(talk.channel.close)
    assert len(talk.broke) == 1


@pytest.mark.parametrize(
    "script",
    ["hear(); say('a', 1); hear(); os.close(i)", "hear(); os.close(i); say('a', 1)"],
    ids=["later", "before the first call"],
)
def test_a_reading_end_that_is_lost_is_noticed(talk: Conversation, script: str) -> None:
    talk.answer = lambda channel, call: channel.say("a", {})
    talk.say(*START)
    program = talk.start(f"open_both(); {script}; time.sleep(60)")
    assert "closed the FIFO that it reads from" in talk.wait_for_break()
    assert talk.calls == [Call("a", 1)]
    assert program.poll() is None


def test_what_a_program_said_before_its_reading_end_was_noticed_as_lost_still_counts(
    talk: Conversation, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    talk.say(*START)
    talk.start(
        "open_both(); hear(); say('a', 1); hear(); os.close(i)\n"
        f"say('exit', {{'keep_process': 'no'}}); os.mkdir({str(done)!r}); time.sleep(60)"
    )
    talk.wait_for_calls(1)

    def look_away() -> None:
        talk.channel.say("go", {})
        wait_for(done.exists, "the program's last words")

    talk.in_reactor(look_away)
    assert "closed the FIFO that it reads from" in talk.wait_for_break()
    assert talk.calls == [Call("a", 1), EXIT]


def test_a_program_that_does_not_read_is_given_up(talk: Conversation) -> None:
    told_meanwhile: list[str] = []

    def flood(channel: ProgramChannel, call: Call) -> None:
        for _ in range(18):
            channel.say("data", "x" * 2**20)
        told_meanwhile.extend(talk.broke)

    talk.answer = flood
    talk.start("open_both(); say('a', 1); time.sleep(60)")
    assert "does not read its messages" in talk.wait_for_break()
    assert not told_meanwhile, "the owner was told in the middle of its calls"


def test_good_calls_before_garbage_are_given_first(talk: Conversation) -> None:
    talk.start("open_both(); write(b'\\0\\0\\0\\x07[\"a\",1]garbage'); time.sleep(60)")
    assert "is the text 'garb'" in talk.wait_for_break()
    assert talk.calls == [Call("a", 1)]


def test_an_owner_that_fails_breaks_the_channel(running_reactor: Any, tmp_path: Path) -> None:
    talk = Conversation(running_reactor, tmp_path / "channel")

    def fail(channel: ProgramChannel, call: Call) -> None:
        raise LookupError("no such output")

    talk.answer = fail
    talk.start("open_both(); say('a', 1); time.sleep(60)")
    assert "this worker failed" in talk.wait_for_break()
    talk.end()


def test_an_event_of_an_earlier_descriptor_of_the_same_number_changes_nothing(
    talk: Conversation,
) -> None:
    """The reactor may have such events if descriptors are closed and opened in one tick."""
    lost: Any = TwistedFailure(ConnectionDone())  # type: ignore[no-untyped-call]  # Twisted's own
    outgoing = talk.channel._outgoing

    def disturb() -> None:
        for call in (talk.channel.doRead, outgoing.doRead, outgoing.doWrite):
            call()
        for selectable in (talk.channel, outgoing):
            for remove in (talk.in_reactor.reactor.removeReader, outgoing._reactor.removeWriter):
                remove(selectable)
            selectable.connectionLost(lost)

    def say_and_disturb() -> None:
        talk.channel.say("data", "x" * 10**6)
        disturb()

    talk.in_reactor(disturb)
    talk.start(
        "o = os.open(said, os.O_WRONLY); say('log', 1); time.sleep(0.05)\n"
        "i = os.open(told, os.O_RDONLY); say('echo', hear()); say('echo', len(hear()[1]))\n"
        "hear(); os.close(i); time.sleep(60)"
    )
    talk.wait_for_calls(1)
    talk.say(*START)
    assert talk.wait_for_calls(2)[1] == Call("echo", list(START))
    talk.in_reactor(disturb)
    talk.in_reactor(say_and_disturb)
    assert talk.wait_for_calls(3)[2] == Call("echo", 10**6)
    talk.in_reactor(disturb)
    talk.say("last", {})
    assert "closed the FIFO that it reads from" in talk.wait_for_break()


@pytest.mark.slow
def test_a_thousand_channels_leave_nothing(in_reactor: Any, tmp_path: Path) -> None:
    call = encode_call("exit", {"keep_process": "no"})

    def one(number: int) -> None:
        talk = Conversation(in_reactor, tmp_path / str(number))
        talk.say(*START)
        _, said, _, told = talk.channel.arguments
        if number % 5:
            writing, reading = os.open(said, os.O_WRONLY), os.open(told, os.O_RDONLY)
            os.read(reading, 65536)
            os.write(writing, [b"", call, call[:-3], b"garbage", call][number % 5])
            if number % 5 == 4:
                os.close(reading)
            if number % 5 == 2:
                os.close(writing)
            while not (talk.came or talk.broke):
                in_reactor(lambda: None)
            for descriptor in {reading, writing} - {[0, 0, writing, 0, reading][number % 5]}:
                os.close(descriptor)
        talk.end()
        talk.directory.rmdir()

    for number in range(200):
        one(number)
    descriptors, grown = descriptors_of(os.getpid()), []
    for _ in range(3):  # other parts of this process may need memory meanwhile
        before = private_bytes(os.getpid())
        for number in range(1000):
            one(number)
        grown.append(private_bytes(os.getpid()) - before)
        if grown[-1] < 2**20:
            break
    assert descriptors_of(os.getpid()) == descriptors
    assert min(grown) < 2**20


# --- descriptors ----------------------------------------------------------------------------------


def test_a_descriptor_is_handed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with socket.socket(socket.AF_UNIX) as listener, (tmp_path / "file").open("rb") as file:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        send_descriptor(str(tmp_path / "socket"), file.fileno())
        connection, _ = listener.accept()
        with connection:
            data, descriptors, _, _ = socket.recv_fds(connection, 100, 10)
            assert connection.recv(1) == b""
    assert data == b"FD"
    (descriptor,) = descriptors
    assert os.read(descriptor, 100) == b"content"
    os.close(descriptor)


def test_where_nobody_takes_a_descriptor_an_error_comes_at_once(tmp_path: Path) -> None:
    before = descriptors_of(os.getpid())
    for path in (str(tmp_path / "missing"), "\0abstract", "x" * 200):
        with pytest.raises(OSError, match=r".+"):
            send_descriptor(path, 0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(0)
        send_descriptor(str(tmp_path / "socket"), 0)
        with pytest.raises(BlockingIOError):
            send_descriptor(str(tmp_path / "socket"), 0)
    assert descriptors_of(os.getpid()) == before
