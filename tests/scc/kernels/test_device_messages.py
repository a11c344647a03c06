"""Messages between cores of several kernels, in the segment of an image in one file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ciel.scc.device import DEAD_S, Device
from ciel.scc.mpb import CoreGoneError, MpbError, MpbTimeoutError
from ciel.scc.store import open_cores
from ciel.storage.errors import StoreSpecError
from ciel.testing.homes import wait_for

HERE, THERE = 1, 2
LIMIT_S = 20
FILE_BYTES = 16 << 20
PEER = """
import sys
from pathlib import Path
from ciel.scc.device import Device
with Device(Path(sys.argv[1]), kernel=2) as device, device.message_core(1) as core:
    core.send(0, b"from the other kernel", 20)
    print("sent", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path() -> Iterator[Path]:
    """Yield a file in memory that has an image with four cores of a store."""
    path = Path(f"/dev/shm/ciel-messages-{os.getpid()}")
    with open(path, "wb") as file:
        file.truncate(FILE_BYTES)
    options = {"path": str(path), "kernels": "separate", "capacity": "4MiB", "cores": "4"}
    open_cores(options, kernel=HERE).close()
    yield path
    path.unlink()


@pytest.mark.requirement("CIB-30")
def test_cores_of_two_kernels_exchange_messages(path: Path) -> None:
    with ExitStack() as stack:
        zero, one = (
            stack.enter_context(
                stack.enter_context(Device(path, kernel=kernel)).message_core(number)
            )
            for number, kernel in enumerate((HERE, THERE))
        )
        assert zero.count == 8  # twice as many as the store has
        content = os.urandom(70_000)
        receive, send = zero.irecv(100_000), one.isend(0, content)
        while not all([zero.test(receive), one.test(send)]):
            pass
        assert (receive.core, receive.content) == (1, content)
        assert zero.lives(1)
        assert not zero.lives(2)


def test_a_core_of_messages_belongs_to_one_process(path: Path) -> None:
    with Device(path, kernel=HERE) as device, Device(path, kernel=THERE) as other:
        with device.message_core(7) as core, pytest.raises(MpbError, match="a live process"):
            other.message_core(core.number)
        other.message_core(7).close()
        with pytest.raises(MpbError, match="8 cores, numbered from 0"):
            device.message_core(8)
        with device.message_core(7) as core:
            assert core.incarnation_of(7) == 3


def test_a_file_without_an_image_has_no_messages(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(bytes(1 << 20))
    with (
        Device(tmp_path / "empty") as device,
        pytest.raises(StoreSpecError, match="there is no image in the file"),
    ):
        device.message_core(0)


@pytest.mark.requirement("CIB-30", "CIB-31")
def test_a_core_whose_process_has_died_is_gone_and_begins_afresh(path: Path) -> None:
    words = [sys.executable, "-c", PEER, str(path)]
    with Device(path, kernel=HERE) as device, device.message_core(0, check_ms=1) as zero:
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as peer:
            assert zero.recv(100, 1, LIMIT_S) == (1, b"from the other kernel")
            assert peer.stdout is not None
            assert peer.stdout.readline() == "sent\n"
            waiting = zero.irecv(100, 1)
            assert not zero.test(waiting)
            peer.kill()
        before = os.times().elapsed
        wait_for(lambda: not zero.lives(1), "the death of the peer to be noticed", DEAD_S + 8)
        assert os.times().elapsed - before > DEAD_S / 2  # not by a file of this kernel
        with pytest.raises(CoreGoneError):
            zero.send(1, b"x", LIMIT_S)
        zero.cancel(waiting)
        with Device(path, kernel=THERE) as other, other.message_core(1) as one:
            receive, send = one.irecv(10), zero.isend(1, b"again")
            while not all([one.test(receive), zero.test(send)]):
                pass
            assert receive.content == b"again"


@pytest.mark.requirement("CIB-30")
def test_no_bell_of_another_kernel_has_to_end_a_sleep(path: Path) -> None:
    """A core polls its bell every millisecond, so it sleeps hundreds of times in half a second."""
    with Device(path, kernel=HERE) as device, device.message_core(3) as core:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        assert not core.sleep(core.bell(), 0.5)
        sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    assert sleeps > 30  # otherwise three: signals are handled every 0.2 s


def test_a_wait_ends_although_a_peer_is_silent(path: Path) -> None:
    with (
        Device(path, kernel=HERE) as device,
        device.message_core(0) as zero,
        device.message_core(1),
        pytest.raises(MpbTimeoutError),
    ):
        zero.recv(10, 1, 0.05)
