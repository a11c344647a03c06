"""Tests stdin feeders with real programs that read from them."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.testing.homes import wait_for
from ciel.worker.streams.stdin_feeder import Feeder

LARGE = bytes(range(256)) * 4096


def open_count() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def feed(in_reactor: Any, tmp_path: Path) -> Iterator[Callable[..., tuple[bytes, Feeder]]]:
    """Feed contents to a command; return its output and the feeder."""

    def feed(*contents: bytes | None, command: str = "cat") -> tuple[bytes, Feeder]:
        paths = [tmp_path / str(number) for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            if content is not None:
                path.write_bytes(content)
        feeder = Feeder(in_reactor.reactor, [str(path) for path in paths])
        program = subprocess.Popen(
            ["sh", "-c", command], stdin=feeder.descriptor, stdout=subprocess.PIPE
        )
        in_reactor(feeder.start)
        output, _ = program.communicate(timeout=20)
        wait_for(lambda: feeder.fileno() < 0, "the feeder's end")
        return output, feeder

    before = open_count()
    yield feed
    wait_for(lambda: open_count() <= before, "the end of what the feeder opened")
    assert not in_reactor(in_reactor.reactor.getWriters)


@pytest.mark.parametrize(
    "contents",
    [(), (b"",), (b"one",), (b"one", b"", b"two"), (LARGE, b"x", LARGE)],
    ids=["none", "empty", "one", "with an empty one", "larger than a pipe"],
)
def test_inputs_arrive_in_order(
    feed: Callable[..., tuple[bytes, Feeder]], contents: tuple[bytes, ...]
) -> None:
    output, feeder = feed(*contents)
    assert output == b"".join(contents)
    assert feeder.error is None


def test_a_program_that_closes_its_input_early_is_no_error(
    feed: Callable[..., tuple[bytes, Feeder]],
) -> None:
    output, feeder = feed(LARGE, LARGE, command="head -c 3; exec <&-; sleep 0.1")
    assert output == LARGE[:3]
    assert feeder.error is None


def test_a_slow_reader_gets_everything_and_the_reactor_stays_free(
    feed: Callable[..., tuple[bytes, Feeder]], in_reactor: Any
) -> None:
    started_s = time.monotonic()
    output, _ = feed(LARGE, command="sleep 0.1; wc -c")
    assert int(output) == len(LARGE)
    assert time.monotonic() - started_s < 10


def test_an_input_that_cannot_be_read_is_an_error(
    feed: Callable[..., tuple[bytes, Feeder]],
) -> None:
    output, feeder = feed(b"one", None, b"two")
    assert output == b"one"
    assert feeder.error is not None
    assert feeder.error.errno == errno.ENOENT


def test_a_pipe_that_the_reactor_gives_up_is_an_error(
    feed: Callable[..., tuple[bytes, Feeder]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program sees the end of its input, and must not take that for the whole."""

    def fail(feeder: Feeder, path: str) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Feeder, "_feed_file", fail)
    monkeypatch.setattr("twisted.internet.posixbase.log.err", lambda: None)
    output, feeder = feed(b"one")
    assert output == b""
    assert feeder.error is not None
    assert "its pipe cannot be served: planted" in str(feeder.error)


def test_closed_in_the_middle_the_program_sees_the_end(in_reactor: Any, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    before = open_count()
    feeder = Feeder(in_reactor.reactor, [str(path)])
    with subprocess.Popen(
        ["sh", "-c", "read line; cat >/dev/null; echo end"],
        stdin=feeder.descriptor,
        stdout=subprocess.PIPE,
    ) as program:
        in_reactor(feeder.start)
        in_reactor(feeder.close)
        in_reactor(feeder.close)
        assert program.communicate(timeout=20)[0] == b"end\n"
    assert open_count() == before
