"""Parts of the memory server daemon, without a master."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from ciel.cli.daemons.addresses import require_reachable
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.memory import parser
from ciel.cli.daemons.memory_offer import HostWatch
from ciel.memory.host import PROC, HostMemory, read_host
from ciel.memory.page_server import PageServer

MEMINFO = "MemTotal: 4000 kB\nMemFree: 1 kB\nMemAvailable: 3000 kB\nSwapTotal: 8 kB\n"
PRESSURE = """\
some avg10={some} avg60=0.00 avg300=0.00 total=5
full avg10=1.50 avg60=0.00 avg300=0.00 total=5
"""


class Reactor(Clock):
    """A clock, and the readers that were added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Any] = []
        self.addReader, self.removeReader = self.readers.append, self.readers.remove


@pytest.fixture
def proc(tmp_path: Path) -> Callable[[str], Path]:
    """Write files like the kernel's; return their directory."""

    def write(some: str) -> Path:
        (tmp_path / "pressure").mkdir(exist_ok=True)
        (tmp_path / "meminfo").write_text(MEMINFO)
        (tmp_path / "pressure/memory").write_text(PRESSURE.format(some=some))
        return tmp_path

    return write


def options(*words: str) -> argparse.Namespace:
    found: argparse.Namespace = parser().parse_args(["--offer", "8MiB", *words])
    return found


def test_a_daemon_that_other_hosts_cannot_reach_says_what_it_is() -> None:
    why = r"cannot reach this memory server: it listens on 127\.0\.0\.1"
    with pytest.raises(DaemonError, match=why):
        require_reachable("127.0.0.1", "http://192.0.2.1:8000", "memory server")


def test_the_kernel_s_files_are_read(proc: Callable[[str], Path]) -> None:
    assert read_host(proc("12.34")) == HostMemory(4000 << 10, 3000 << 10, 8 << 10, 12.34, 1.5)


def test_a_kernel_without_these_files_tells_nothing(tmp_path: Path) -> None:
    assert read_host(tmp_path) == HostMemory(0, 0, 0, 0.0, 0.0)


def test_this_kernel_s_files_are_understood() -> None:
    host = read_host()
    assert 0 < host.available_bytes < host.total_bytes


@pytest.mark.parametrize(
    "words, expected",
    [([], 10.0), (["--pressure-max", "2.5"], 2.5), (["--pressure-max", "off"], None)],
)
def test_the_limit_is_a_percentage_or_off(words: list[str], expected: float | None) -> None:
    assert options(*words).pressure_max == expected


@pytest.mark.parametrize("text", ["0", "101", "much", "-1"])
def test_another_limit_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(f"--pressure-max={text}")
    assert "is neither a percentage nor off" in capsys.readouterr().err


def test_a_host_short_of_memory_lowers_the_offer_and_the_pages_are_given_back(
    proc: Callable[[str], Path],
) -> None:
    pages, changes = PageServer(8 << 20), []
    watch = HostWatch(
        Reactor(), options("--proc", str(proc("0.00"))), pages, lambda: changes.append(1)
    )
    watch.observe(8, 2048)
    assert (watch.offer.extents, changes) == (8, [])
    proc("50.00")
    watch.observe(8, 2048)
    assert (watch.offer.extents, changes) == (7, [1])
    watch.close()
    pages.close()


def test_a_notice_of_the_kernel_lowers_the_offer_at_once() -> None:
    reactor, pages, changes = Reactor(), PageServer(8 << 20), []
    watch = HostWatch(reactor, options(), pages, lambda: changes.append(1))
    try:
        if not reactor.readers:
            pytest.skip("this kernel gives no notice of pressure")
        watch.observe(8, 2048)
        watch._triggered(11.0)
        assert (watch.offer.extents, changes) == (7, [1])
    finally:
        watch.close()
        pages.close()
    assert reactor.readers == []
    assert options().proc == PROC
