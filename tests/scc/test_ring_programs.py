"""Programs that talk with their worker by a ring, once both have said that they can."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.net.channels import Channels
from ciel.scc.channels import RingKind
from ciel.testing.homes import descriptors_of, wait_for
from ciel.wire.calls import Call
from ciel.worker.interactive.channel import ProgramChannel, channel_environment

# The program echoes each call, by the channel of the SDK.
ECHO = """
import json, os, sys, time
from ciel.executors.sdk import ciel_ring, ciel_task
channel = ciel_task.connect()
while (payload := channel._frame()) is not None:
    method, args = json.loads(payload)
    if method == "now":
        exec(args)
    channel.send(json.dumps(["echo", args]).encode())
    channel.flush()
"""
ALONE = ECHO.replace("from ciel.executors.sdk import ciel_ring, ciel_task", "import ciel_task")
SDK = Path(__file__).parents[2] / "executors/sdk"
ENOUGH = 30  # exchanges, after which it has offered a ring


class Talk:
    """A worker's end of a conversation with a real program."""

    def __init__(self, in_reactor: Any, directory: Path, channels: Channels | None) -> None:
        self.run = in_reactor
        self.channels = channels
        self.came: list[Call] = []
        self.broke: list[str] = []
        directory.mkdir()
        self.channel: ProgramChannel = self.run(
            ProgramChannel, in_reactor.reactor, str(directory), self, channels
        )
        self.program: subprocess.Popen[bytes] | None = None

    def calls_came(self, channel: ProgramChannel, calls: list[Call]) -> None:
        self.came += calls

    def channel_broke(self, channel: ProgramChannel, why: str) -> None:
        self.broke.append(why)

    def start(self, script: str = ECHO, **more: str) -> None:
        environ = {**os.environ, **channel_environment(self.channels), **more}
        command = [sys.executable, "-c", script, *self.channel.arguments]
        self.program = subprocess.Popen(command, env=environ)

    def exchange(self, *said: Any) -> None:
        """Say things one by one, each answered before the next."""
        for args in said:
            count = len(self.came)
            self.run(self.channel.say, "say", args)
            wait_for(lambda count=count: len(self.came) > count or self.broke, "an echo")  # type: ignore[misc]  # mypy knows no such lambda
            assert self.came[-1] == Call("echo", args)

    def switch(self) -> None:
        self.exchange(*range(ENOUGH))
        assert self.channel._has_switched

    def end(self) -> None:
        self.run(self.channel.close)
        if self.program is not None:
            self.program.kill()
            self.program.wait()


@pytest.fixture
def channels(in_reactor: Any) -> Iterator[Channels]:
    kind = RingKind(50)
    channels = Channels(in_reactor.reactor, kind)
    yield channels
    assert not len(kind.lookout)
    in_reactor(channels.close)


@pytest.fixture
def talk(in_reactor: Any, tmp_path: Path, channels: Channels) -> Iterator[Talk]:
    talk = Talk(in_reactor, tmp_path / "channel", channels)
    before = descriptors_of(os.getpid())
    yield talk
    talk.end()
    assert descriptors_of(os.getpid()) <= before


def test_a_program_that_says_much_goes_on_by_a_ring(talk: Talk) -> None:
    talk.start()
    talk.switch()
    large = ["x" * 400_000, "ü" * 100_000]
    talk.exchange(*large, *range(50), *large)
    assert talk.channel.has_listened
    # All at once: more than the ring holds, in both directions.
    count = len(talk.came)
    for number in range(100):
        talk.run(talk.channel.say, "say", "y" * 5_000 + str(number))
    wait_for(lambda: len(talk.came) == count + 100, "all echoes")
    assert [call.args[5_000:] for call in talk.came[count:]] == [str(n) for n in range(100)]


@pytest.mark.parametrize("spin_us", [0, 50])
def test_rings_are_offered_where_looking_pays(in_reactor: Any, spin_us: int) -> None:
    channels = Channels(in_reactor.reactor, RingKind(spin_us))
    expected = {"CIEL_CHANNEL": "ring:50"} if spin_us else {}
    assert channel_environment(channels) == expected
    assert channel_environment(None) == {}


def test_a_worker_without_rings_is_not_disturbed_by_an_offer(
    in_reactor: Any, tmp_path: Path
) -> None:
    talk = Talk(in_reactor, tmp_path / "channel", None)
    talk.start()
    talk.exchange(*range(ENOUGH))
    assert not talk.channel._has_switched
    talk.end()


def test_the_file_that_programs_take_along_needs_no_rings(talk: Talk) -> None:
    script = ALONE.replace("import json", "import sys; sys.modules['ciel'] = None; import json", 1)
    talk.start(script, PYTHONPATH=str(SDK))
    talk.exchange(*range(ENOUGH))
    assert not talk.channel._has_switched


def test_what_is_no_ring_is_not_taken(talk: Talk) -> None:
    talk.start()
    for path in ("/proc/self/fd/0", "/proc/1/../self/fd/0", "/dev/null", "/proc/999999999/fd/1"):
        count = len(talk.came)
        offer = f"channel.send(json.dumps(['channel', {{'offer': {path!r}}}]).encode())"
        talk.run(talk.channel.say, "now", offer)
        wait_for(lambda count=count: len(talk.came) > count, "the echo")  # type: ignore[misc]  # mypy knows no such lambda
        assert talk.came[-1].method == "echo"
    assert talk.channel._transport is None
    talk.run(talk.channel.say, "now", 'channel.send(b\'["channel",{"offer":7}]\')')
    # No text, so no offer either: the owner is to judge it.
    wait_for(lambda: Call("channel", {"offer": 7}) in talk.came, "the call")


# --- ends -----------------------------------------------------------------------------------------


def test_the_last_words_of_a_program_that_dies_are_heard(talk: Talk) -> None:
    talk.start()
    talk.switch()
    count = len(talk.came)
    last = "for n in range(500): channel.send(b'[\"last\",%d]' % n)\n"
    last += "channel.flush(); os.kill(os.getpid(), 9)"
    talk.run(talk.channel.say, "now", last)
    wait_for(lambda: talk.broke, "its end")
    assert [call.args for call in talk.came[count:]] == list(range(500))
    assert len(talk.broke) == 1
    assert "closed the FIFO that it" in talk.broke[0]


def test_a_program_that_dies_in_a_call_is_told_of(talk: Talk) -> None:
    talk.start()
    talk.switch()
    last = "channel._pipes.write(0, bytearray(b'\\0\\0\\1\\0[\"publish')); os.kill(os.getpid(), 9)"
    talk.run(talk.channel.say, "now", last)
    wait_for(lambda: talk.broke, "its end")
    assert "in the middle of a call: only 9 of the 256 bytes" in talk.broke[0]


def test_a_worker_that_leaves_is_noticed(talk: Talk) -> None:
    talk.start()
    talk.switch()
    talk.run(talk.channel.close)
    assert talk.program is not None
    assert talk.program.wait(20) == 0


def test_a_program_that_spoils_the_memory_is_told_of(talk: Talk) -> None:
    talk.start()
    talk.switch()
    spoil = (
        "import re, mmap\n"
        "line = next(l for l in open('/proc/self/maps') if 'ciel-ring' in l)\n"
        "start = int(line.split('-')[0], 16)\n"
        "memory = open('/proc/self/mem', 'r+b', 0); memory.seek(start + 128)\n"
        "memory.write(b'\\xff' * 8)\n"
        "os.write(channel._writes, b'x'); time.sleep(60)"
    )
    talk.run(talk.channel.say, "now", spoil)
    wait_for(lambda: talk.broke, "the end")
    assert "has damaged its channel" in talk.broke[0]
    assert talk.channel.is_misused


def test_a_program_that_does_not_read_is_given_up(talk: Talk) -> None:
    talk.start()
    talk.switch()
    talk.run(talk.channel.say, "now", "time.sleep(60)")

    def flood() -> None:
        for _ in range(18):
            talk.channel.say("data", "x" * 2**20)

    talk.run(flood)
    assert not talk.run(lambda: talk.channel.has_listened)
    wait_for(lambda: talk.broke, "the end")
    assert "does not read its messages" in talk.broke[0]
