"""Tests the launcher's protocol without a launcher process."""

import os
import signal
import struct

import pytest

from ciel.launch import (
    Descriptor,
    LaunchSpec,
    LaunchSpecError,
    Limits,
    ProgramExited,
    ProgramFailed,
    ProgramStarted,
    Stage,
    Standard,
)
from ciel.launch.messages import (
    REQUEST_BYTES_MAX,
    decode_events,
    encode_adopt,
    encode_kill,
    encode_start,
)


def test_a_start_is_its_size_then_numbers_then_terminated_strings() -> None:
    spec = LaunchSpec(
        ["prog", b"\xff"],
        cwd="/tmp",
        env={"A": "1", "GONE": None},
        stdout=Descriptor(7),
        stderr=Standard.STDOUT,
        limits=Limits(open_files=5),
    )
    waits = LaunchSpec(["prog"], at_most=3)
    assert struct.unpack_from("=I", encode_start(9, waits), 28) == (3,)
    request = encode_start(9, spec)
    size_bytes, kind, _, launch_id = struct.unpack_from("=IHHQ", request)
    assert (size_bytes, kind, launch_id) == (len(request), 1, 9)
    assert struct.unpack_from("=II3B", request, 16) == (2, 2, 0, 2, 4)
    assert struct.unpack_from("=4Q", request, 32) == (2**64 - 1, 5, 2**64 - 1, 0)
    assert request[64:] == b"/tmp\0/dev/null\0\0\0prog\0\xff\0A=1\0GONE\0"
    assert spec.descriptors == [7]


def test_an_adoption_names_a_process_and_its_parent() -> None:
    assert encode_adopt(9, 8, 77) == struct.pack("=IHHQQQ", 32, 3, 0, 9, 8, 77)


def test_a_kill_names_its_signal() -> None:
    assert encode_kill(9, signal.SIGTERM) == struct.pack("=IHHQ", 16, 2, 15, 9)


def test_events_are_decoded_in_order() -> None:
    def event(kind: int, stage: int, value: int, *times: int) -> bytes:
        return struct.pack("=HHiQQQQQ", kind, stage, value, 2**64 - 1, *times)

    data = event(1, 0, 77, 0, 0, 0, 0) + event(2, 7, 2, 0, 0, 0, 0)
    data += event(3, 0, 9, 2_500_000, 1_500_000, 2, 4096)
    expected = [
        ProgramStarted(2**64 - 1, 77),
        ProgramFailed(2**64 - 1, 2, Stage.EXEC),
        ProgramExited(2**64 - 1, 9, 2.5, 1.5, 2e-6, 4096),
    ]
    assert decode_events(data) == (expected, b"")
    for cut in range(len(data)):
        events, rest = decode_events(data[:cut])
        assert events == expected[: len(events)]
        assert decode_events(rest + data[cut:]) == (expected[len(events) :], b"")


@pytest.mark.parametrize(
    "status, exit_status, signal_name",
    [(0, 0, None), (3 << 8, 3, None), (9, None, "SIGKILL"), (11 | 128, None, "SIGSEGV")],
)
def test_a_status_is_an_exit_or_a_signal(
    status: int, exit_status: int | None, signal_name: str | None
) -> None:
    event = ProgramExited(1, status, 0.0, 0.0, 0.0, 0)
    assert (event.exit_status, event.signal_name) == (exit_status, signal_name)


def test_a_signal_without_a_name_has_its_number() -> None:
    assert ProgramExited(1, 40, 0.0, 0.0, 0.0, 0).signal_name == "SIG40"


def test_a_failure_names_its_stage_and_reason() -> None:
    assert ProgramFailed(1, 2, Stage.CHDIR).reason == f"chdir: {os.strerror(2)}"


@pytest.mark.parametrize(
    "spec, message",
    [
        (LaunchSpec([]), "argv names no program"),
        (LaunchSpec([""]), "argv names no program"),
        (LaunchSpec(["a", "b\0c"]), r"b'b\\x00c' contains a zero byte"),
        (LaunchSpec(["a"], cwd="\0"), "contains a zero byte"),
        (LaunchSpec(["a"], env={"N": "\0"}), "contains a zero byte"),
        (LaunchSpec(["a"], env={"A=B": "c"}), "environment name 'A=B'"),
        (LaunchSpec(["a"], env={"": "c"}), "environment name ''"),
        (LaunchSpec(["a"], stdout=Standard.STDOUT), "is for stderr only"),
        (LaunchSpec(["a", "b" * REQUEST_BYTES_MAX]), "takes 6 strings, 8388"),
        (LaunchSpec(["a"] * (1 << 20)), "takes 1048580 strings"),
    ],
)
def test_an_invalid_launch_is_refused_before_it_is_sent(spec: LaunchSpec, message: str) -> None:
    with pytest.raises(LaunchSpecError, match=message):
        encode_start(1, spec)
