"""A real reactor in a thread of its own, for what is about sockets."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from twisted.internet import reactor as installed_reactor
from twisted.internet.threads import blockingCallFromThread
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from ciel.net.turns import use_monotonic_clock

T = TypeVar("T")
reactor: Any = installed_reactor


class ReactorThread:
    """Runs calls in the reactor's thread, waiting for their result or that of their Deferred."""

    reactor = reactor

    def __call__(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return blockingCallFromThread(reactor, call, *args, **options)


@pytest.fixture(scope="session")
def running_reactor() -> Iterator[ReactorThread]:
    use_monotonic_clock(reactor)
    thread = threading.Thread(target=reactor.run, kwargs={"installSignalHandlers": False})
    started = threading.Event()
    reactor.callWhenRunning(started.set)
    thread.start()
    assert started.wait(10)
    yield ReactorThread()
    reactor.callFromThread(reactor.stop)
    thread.join(10)
    assert not thread.is_alive()


@implementer(ILogObserver)
class _FaultWatch:
    def __init__(self) -> None:
        self.faults: list[LogEvent] = []

    def __call__(self, event: LogEvent) -> None:
        if "log_failure" in event:
            self.faults.append(event)


@pytest.fixture
def in_reactor(running_reactor: ReactorThread) -> Iterator[ReactorThread]:
    """Fail a test that leaves a delayed call or a reader behind, or has the reactor log a fault."""
    watch: Any = _FaultWatch()
    readers = set(running_reactor(reactor.getReaders))
    globalLogPublisher.addObserver(watch)
    yield running_reactor
    globalLogPublisher.removeObserver(watch)
    left = [*(set(running_reactor(reactor.getReaders)) - readers)]
    assert not left
    assert not running_reactor(reactor.getDelayedCalls)
    assert not watch.faults
