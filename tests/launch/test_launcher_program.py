"""Tests the C program alone: its refusals of malformed requests, and that sanitizers find no
fault.
"""

import os
import random
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import ciel.launch
from ciel.launch import (
    DEV_NULL,
    Descriptor,
    File,
    Launcher,
    LaunchSpec,
    Limits,
    ProgramExited,
    ProgramFailed,
    Standard,
)
from ciel.launch.messages import REQUEST_BYTES_MAX, encode_adopt, encode_kill, encode_start

SOURCE = Path(ciel.launch.__file__).with_name("launcher.c")
PROGRAM = SOURCE.with_name("ciel-launcher")
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]

Ends = Callable[[Launcher, int], list[ProgramExited | ProgramFailed]]


def talk(program: Path, data: bytes, descriptors: list[int] | None = None) -> tuple[int, str]:
    """Send bytes, then end the stream; return the launcher's exit status and standard error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [str(program), str(theirs.fileno()), "1"]
        with subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
        ) as process:
            theirs.close()
            try:
                sent = socket.send_fds(ours, [data], descriptors or [])
                ours.sendall(data[sent:])
            except (BrokenPipeError, ConnectionResetError):
                pass  # it has ended already
            ours.shutdown(socket.SHUT_WR)
            _, words = process.communicate(timeout=20)
            return process.returncode, words


def send_descriptors_forever(link: socket.socket) -> None:
    while True:
        socket.send_fds(link, [encode_kill(1, 9)], [0] * 200)


def start_bytes(**fields: object) -> bytes:
    return encode_start(1, LaunchSpec(["/bin/true"], **fields))  # type: ignore[arg-type] # by name


def patched(data: bytes, offset: int, layout: str, value: int) -> bytes:
    """Return the same bytes with one number changed."""
    copy = bytearray(data)
    struct.pack_into(layout, copy, offset, value)
    return bytes(copy)


START = start_bytes(env={"A": "1"})
MALFORMED = {
    "unknown kind": patched(START, 4, "=H", 4),
    "size of zero": patched(START, 0, "=I", 0),
    "size over the limit": patched(START, 0, "=I", REQUEST_BYTES_MAX + 1),
    "largest size": patched(START, 0, "=I", 2**32 - 1),
    "start without strings": patched(START, 0, "=I", 64)[:64],
    "start cut short": patched(START, 0, "=I", 40)[:40],
    "string without end": START[:-1] + b"x",
    "no arguments": patched(START, 16, "=I", 0),
    "more arguments than strings": patched(START, 16, "=I", 9),
    "more arguments than tables hold": patched(START, 16, "=I", 2**32 - 1),
    "more changes than tables hold": patched(START, 20, "=I", 2**31),
    "fewer arguments than strings": patched(START, 20, "=I", 0),
    "unknown stream": patched(START, 25, "=B", 5),
    "descriptor that did not come": patched(START, 24, "=B", 2),
    "kill with a tail": patched(encode_kill(1, 9) + bytes(8), 0, "=I", 24),
    "adoption cut short": patched(encode_adopt(1, 2, 3), 0, "=I", 24)[:24],
    "adoption of nobody": encode_adopt(1, 2, 0),
    "adoption of what cannot be": encode_adopt(1, 2, 1 << 22),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_is_refused_in_one_line(data: bytes) -> None:
    status, words = talk(PROGRAM, data)
    assert status == 70
    assert words.startswith("ciel-launcher: malformed request: ")
    assert words.count("\n") == 1


def test_descriptors_that_no_request_uses_are_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [str(PROGRAM), str(theirs.fileno()), "1"]
        with subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE
        ) as process:
            theirs.close()
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                send_descriptors_forever(ours)
            assert process.wait(timeout=10) == 70
            assert process.stderr is not None
            assert b"unused descriptors" in process.stderr.read()


def test_a_malformed_request_ends_all_started_programs(
    marker: str, alive: Callable[[str], list[int]]
) -> None:
    sleeper = encode_start(1, LaunchSpec(["/bin/sh", "-c", f"setsid sleep {marker} & sleep 99"]))
    assert talk(PROGRAM, sleeper + bytes(16))[0] == 70
    assert not alive(marker)


def test_the_end_of_the_stream_is_not_an_error() -> None:
    assert talk(PROGRAM, b"") == (0, "")
    assert talk(PROGRAM, START[:20]) == (0, "")


@pytest.mark.parametrize("arguments", [[], ["3"], ["x", "1"], ["3", "0"], ["3", str(2**31)]])
def test_with_wrong_arguments_it_prints_its_usage(arguments: list[str]) -> None:
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "usage: ciel-launcher SOCKET SALT" in done.stderr


def test_an_invalid_socket_is_refused() -> None:
    done = subprocess.run([PROGRAM, "77", "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (70, "ciel-launcher: socket: Bad file descriptor\n")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sanitized") / "ciel-launcher"
    checks = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *FLAGS, *checks, "-o", program, SOURCE], check=True)
    return program


def test_sanitizers_find_no_fault_in_ordinary_work(
    sanitized: Path, ends: Ends, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read_end, write_end = os.pipe()
    deaf = "trap '' TERM; setsid sleep 99 & sleep 99"
    specs = [
        LaunchSpec(["true"]),
        LaunchSpec(["/bin/echo", "hello"], stdout=File(tmp_path / "out", append=True)),
        LaunchSpec(["/bin/echo", "hello"], stdout=Descriptor(write_end), stderr=Standard.STDOUT),
        LaunchSpec(["/nowhere"], env={"A": "1", "PATH": None}, limits=Limits(open_files=50)),
        LaunchSpec(["true"], cwd="/nowhere"),
        LaunchSpec(["true", *["x" * 1000] * 7000]),
        LaunchSpec(["/bin/sh", "-c", "setsid sleep 99 & exit 3"], stdout=DEV_NULL),
        LaunchSpec(["/bin/sh", "-c", deaf], stdout=DEV_NULL),
    ]
    with Launcher.start_process(program=sanitized) as launcher:
        for _ in range(10):
            for i, spec in enumerate(specs):
                launcher.start(i, spec)
            launcher.adopt(len(specs), 0, os.getpid())
            launcher.kill(len(specs) - 1, signal.SIGTERM)
            launcher.kill(len(specs) - 1)
            launcher.kill(4711)
            ends(launcher, len(specs) + 1)
        os.close(read_end)
        os.close(write_end)
    assert capfd.readouterr().err == ""


def test_sanitizers_find_no_fault_in_malformed_requests(sanitized: Path) -> None:
    for data in MALFORMED.values():
        status, words = talk(sanitized, data)
        assert (status, words.count("\n")) == (70, 1), words


@pytest.mark.slow
def test_sanitizers_find_no_fault_in_damaged_requests(sanitized: Path) -> None:
    dice = random.Random(20)
    whole = START + encode_kill(1, 9) + start_bytes(stdin=Descriptor(0))
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            # Not in the strings, which name the program to execute.
            data[dice.randrange(64)] = dice.choice([0, 1, 2, 16, 127, 128, 255])
        status, words = talk(sanitized, bytes(data), [0])
        assert status in (0, 70), words
        assert words.count("\n") <= 1, words


@pytest.mark.slow
def test_the_static_analyzer_finds_no_fault() -> None:
    checks = ["-O2", "-fanalyzer"]
    subprocess.run(["cc", *FLAGS, *checks, "-o", "/dev/null", SOURCE], check=True)


def test_a_launcher_keeps_no_descriptor_of_its_owner_open() -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    with Launcher.start_process():
        os.close(write_end)
        assert os.read(read_end, 1) == b""
    os.close(read_end)
