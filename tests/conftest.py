"""Configures the whole suite: how many examples hypothesis tries, that no test is skipped in CI,
and that no process or file of the tests is left when the session ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from twisted.internet import reactor as installed_reactor
from twisted.internet.threads import blockingCallFromThread
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from zope.interface import implementer

from ciel.cli.main import main
from ciel.net.ticks import use_monotonic_clock
from ciel.python.sessions import everyone, leave

IS_CI = os.environ.get("CIEL_CI") == "1"
IS_LONG = os.environ.get("CIEL_LONG") == "1"
TEST_COUNT = Path(__file__).parent.parent / ".ci" / "test-count"
"""The least number of tests, of all and without the slow ones."""
QUICK: Final = "not slow"
"""The marks that `make test` asks for."""

# Neither a machine under load nor a random choice may make a test fail.
settings.register_profile(
    "ciel",
    deadline=None,
    derandomize=not IS_LONG,
    max_examples=2000 if IS_LONG else 60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ciel")


# --- in CI, no test may be skipped or vanish ------------------------------------------------------


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IS_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, which is an error in CI: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report


def _is_whole(config: pytest.Config) -> bool:
    """Return whether no option on the command line narrows the suite."""
    narrowing = ("keyword", "deselect", "ignore", "ignore_glob", "lf", "stepwise")
    return (
        config.args_source is config.ArgsSource.TESTPATHS
        and config.getoption("markexpr") in ("", QUICK)
        and not any(config.getoption(name, None) for name in narrowing)
    )


def _expect_all(config: pytest.Config, found: int) -> None:
    if not IS_CI or not _is_whole(config):
        return
    numbers = TEST_COUNT.read_text().split() if TEST_COUNT.exists() else []
    at = 1 if config.getoption("markexpr") == QUICK else 0
    if len(numbers) != 2 or not numbers[at].isdecimal() or found < int(numbers[at]):
        raise pytest.UsageError(
            f"{found} tests were collected, {TEST_COUNT} says {numbers[at : at + 1]}: "
            "have some vanished? If they were taken out on purpose, lower the number"
        )


# --- the order of files ---------------------------------------------------------------------------

LONG_FIRST: Final = ("tests/docs/", "tests/integration/", "tests/scc/", "tests/sim/")
"""The files that take longest, one of them for minutes. A file runs in one process, so it must not
begin last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        places = [at for at, start in enumerate(LONG_FIRST) if item.nodeid.startswith(start)]
        return places[0] if places else len(LONG_FIRST)

    items.sort(key=rank)


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.testsfailed:
        _expect_all(session.config, len(session.items))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _expect_all(node.config, len(ids))


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def typed() -> Callable[..., tuple[int, str, str]]:
    """Run a ciel command in this process, which is faster, in the environment of a home; return its
    exit status, its standard output and its standard error.
    """

    def run(home: Any, *words: str | bytes) -> tuple[int, str, str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
        with (
            mock.patch.dict(os.environ, home.environ, clear=True), contextlib.chdir(home.path),
            contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        ):  # fmt: skip
            status = main([os.fsdecode(word) for word in words])
        for stream in (out, err):
            stream.seek(0)
        return status, out.read(), err.read()

    return run


@pytest.fixture(scope="module", autouse=True)
def expect_closed_clients() -> Iterator[None]:
    """Fail a file that leaves a client open: later tests of this process would use it."""
    yield
    left = everyone()
    for session in left:
        leave(session)
    assert not left, "some test of this file leaves a client open"


# --- nothing is left behind -----------------------------------------------------------------------

SESSION_VARIABLE = "TEST_SESSION"  # inherited by all processes that the tests start
OUR_PROGRAMS = (
    b"ciel-launcher", b"ciel.cli.daemons.master", b"ciel.cli.daemons.worker", b"\0shmd\0",
    b"ciel-master", b"ciel-worker",
)  # fmt: skip
LEAVE_WITHIN_S = 10.0


def _our_files() -> set[Path]:
    """Return the files of clusters, without files that outlive a cluster: queues for disks
    (`ciel-io-`) and counts of full memory (`ciel-full.`).
    """
    places = (Path("/dev/shm"), ("ciel-", "shmfs")), (Path(tempfile.gettempdir()), ("ciel",))
    return {
        entry
        for place, prefixes in places
        for entry in place.iterdir()
        if entry.name.startswith(prefixes) and not entry.name.startswith(("ciel-io-", "ciel-full."))
    }


def _is_alone() -> bool:
    """Return whether no other test run is active, to which the files may belong."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"python" in program and int(process.name) != os.getpid():
            if any(argument.endswith(b"pytest") for argument in arguments[:2]):
                return False
    return True


def _our_processes(session: bytes) -> dict[int, str]:
    """Return the daemons and launchers that this session started, by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if any(name in command for name in OUR_PROGRAMS):
                if session in (process / "environ").read_bytes():
                    found[int(process.name)] = command.replace(b"\0", b" ").decode()
        except OSError:
            pass  # the process has ended, or belongs to another user
    return found


def _left_behind(files_before: set[Path]) -> list[Any]:
    """Wait until no process or file of the tests is left; return the remaining ones."""
    until_s = time.monotonic() + LEAVE_WITHIN_S
    while True:
        time.sleep(0.05)  # a process that has just started has no name yet
        left: list[Any] = [*_our_processes(os.environ[SESSION_VARIABLE].encode()).items()]
        if files := _our_files() - files_before:
            left += files if _is_alone() else []
        if not left or time.monotonic() > until_s:
            return left


def _hear_interrupts() -> None:
    """Stop ignoring SIGINT, which shells make the processes of background commands ignore."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    _hear_interrupts()
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # it puts the files with most tests first
    if not hasattr(config, "workerinput"):  # else inherited from the controlling process of xdist
        os.environ[SESSION_VARIABLE] = uuid.uuid4().hex


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    if hasattr(session.config, "workerinput"):
        return (yield)
    before = _our_files()
    result = yield
    if left := _left_behind(before):
        raise pytest.UsageError(f"the tests left behind: {left}")
    return result


# --- a real reactor, in its own thread: a process has only one, which can start only once ---------

reactor: Any = installed_reactor


class ReactorThread:
    """Runs calls in the reactor's thread, and waits for their result or their Deferred's."""

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
    """Fail a test that leaves a delayed call or a reader behind, or that makes the reactor log a
    fault.
    """
    watch: Any = _FaultWatch()
    readers = set(running_reactor(reactor.getReaders))
    globalLogPublisher.addObserver(watch)
    yield running_reactor
    globalLogPublisher.removeObserver(watch)
    until_s = time.monotonic() + LEAVE_WITHIN_S
    while True:  # the peer of a closed connection may need another event-loop iteration to see it
        left: list[Any] = [*(set(running_reactor(reactor.getReaders)) - readers)]
        left += running_reactor(reactor.getDelayedCalls)
        if not left or time.monotonic() > until_s:
            break
        time.sleep(0.005)
    assert not left
    assert not watch.faults
