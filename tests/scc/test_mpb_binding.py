from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ciel.scc.builds import BUILDS, Build
from ciel.scc.mpb import (
    ANY,
    Core,
    CoreGoneError,
    MessageSizeError,
    MpbError,
    MpbTimeoutError,
    make_segment,
)

LIMIT_S = 20


@pytest.fixture
def segment() -> Iterator[int]:
    fd = os.memfd_create("mpb")
    make_segment(fd, 3)
    yield fd
    os.close(fd)


def attached(stack: ExitStack, segment: int, build: Build = "coherent") -> list[Core]:
    return [stack.enter_context(Core(segment, n, build=build, check_ms=1)) for n in range(3)]


@pytest.mark.parametrize("build", BUILDS)
def test_a_message_of_any_size_arrives(segment: int, build: Build) -> None:
    with ExitStack() as stack:
        zero, one, _ = attached(stack, segment, build)
        for content in (b"", b"x", os.urandom(70_000)):
            receive = zero.irecv(100_000)
            send = one.isend(0, content)
            while not all([zero.test(receive), one.test(send)]):
                pass
            assert (receive.core, receive.content) == (1, content)


def test_two_threads_exchange_and_meet_at_a_barrier(segment: int) -> None:
    with ExitStack() as stack:
        zero, one, _ = attached(stack, segment)
        replies: list[bytes] = []

        def reply() -> None:
            replies.append(one.exchange(0, b"o" * 50_000, 60_000, LIMIT_S))
            one.barrier((0, 1), LIMIT_S)

        thread = threading.Thread(target=reply)
        thread.start()
        assert zero.exchange(1, b"z" * 60_000, 50_000, LIMIT_S) == b"o" * 50_000
        zero.barrier((0, 1), LIMIT_S)
        thread.join()
        assert replies == [b"z" * 60_000]
        assert zero.counters()["messages_sent"] == 1


def test_what_does_not_come_is_a_timeout_that_says_whether_it_may_yet(segment: int) -> None:
    with ExitStack() as stack:
        zero, one, _ = attached(stack, segment)
        one.push()
        with pytest.raises(MpbTimeoutError) as large:
            zero.send(1, bytes(50_000), 0.01)
        with pytest.raises(MpbTimeoutError) as none:
            zero.recv(10, timeout_s=0.01)
        assert not large.value.may_arrive
        assert large.value.core == 1
        assert none.value.core is None
        one.push()
        zero.push()
        with pytest.raises(MpbTimeoutError) as small:
            zero.send(2, b"small", 0.01)
        assert not small.value.may_arrive  # core 2 has not even answered
        assert one.probe() is None or one.probe() == (0, 50_000)


def test_a_message_that_is_too_large_says_so_and_stays(segment: int) -> None:
    with ExitStack() as stack:
        zero, one, _ = attached(stack, segment)
        zero.push()
        send = one.isend(0, b"twelve bytes")
        with pytest.raises(MessageSizeError) as caught:
            zero.recv(11, timeout_s=LIMIT_S)
        assert (caught.value.core, caught.value.size_bytes) == (1, 12)
        assert zero.probe() == (1, 12)
        assert zero.recv(12, 1, LIMIT_S) == (1, b"twelve bytes")
        assert one.wait(send, LIMIT_S).is_over


def test_a_core_that_is_gone_is_an_error_and_its_lock_is_had(segment: int) -> None:
    with ExitStack() as stack:
        zero, one, two = attached(stack, segment)
        one.lock(0)
        with pytest.raises(MpbTimeoutError):
            zero.lock(0, 0.01)
        one.close()
        assert zero.lock(0, LIMIT_S)
        zero.unlock(0)
        with pytest.raises(CoreGoneError) as caught:
            zero.send(1, b"hello")
        assert caught.value.core == 1
        with pytest.raises(CoreGoneError):
            zero.barrier()
        assert not two.lives(1)
        with Core(segment, 1) as again:
            assert again.incarnation_of(1) == 2


def test_a_core_is_attached_once_and_only_to_a_segment(segment: int) -> None:
    with Core(segment, 2), pytest.raises(MpbError, match="a live process is attached"):
        Core(segment, 2)
    with pytest.raises(MpbError, match="invalid argument"):
        Core(segment, 3)
    os.pwrite(segment, b"\xff", 8)
    with pytest.raises(MpbError, match="a different version"):
        Core(segment, 0)
    with pytest.raises(MpbError):
        make_segment(segment, 65)


def test_a_thread_sleeps_on_the_bell_until_a_message_comes(segment: int) -> None:
    with ExitStack() as stack:
        zero, one, _ = attached(stack, segment)
        zero.push()
        seen = zero.bell()
        assert not zero.sleep(seen, 0.01)
        woken: list[bool] = []
        thread = threading.Thread(target=lambda: woken.append(zero.sleep(seen, LIMIT_S)))
        thread.start()
        request = one.isend(0, b"wake up")
        thread.join()
        assert woken == [True]
        assert zero.recv(10, ANY, LIMIT_S) == (1, b"wake up")
        one.wait(request, LIMIT_S)


def test_a_wait_can_be_interrupted(segment: int) -> None:
    with ExitStack() as stack:
        zero, *_ = attached(stack, segment)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))

        def wait() -> None:
            timer.start()
            zero.recv(10)

        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
        assert zero.push() == 0
