"""Compares `ciel submit --array` on a running cluster with `xargs -P2`, for thousands of programs.

The program appends one byte to a file, so that its runs can be counted. The client's start is part
of the time. Expected cost of a run in addition to the program's own start (about 750 us of CPU): 30
us in the client, 40 in the master, 60 in the launcher, and in the worker 60 for the launcher's
messages and 100 for everything else; with both cores busy that is 0.7 of the rate of xargs.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.control import cpu_s
from ciel.access.paths import current_path

RUNS = 2000
PAIRS = 5
AT_A_TIME = 2
SOURCE = r"""
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **words) {
    int fd = count > 1 ? open(words[1], O_WRONLY | O_APPEND) : -1;
    return fd < 0 || write(fd, "x", 1) != 1;
}
"""
CIEL = Path(sys.executable).with_name("ciel")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Runs per second, as medians; `ratio` is the median of the ratios of pairs.

    CPU time is in microseconds per run, of all processes except the program.
    """

    ciel_per_s: float
    xargs_per_s: float
    ratio: float
    cpu_us_client: float
    cpu_us_daemons: float


class Scene:
    """A cluster of `ciel up` with the program to run; its work directory is in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "appends"
        self.count_file = directory / "count"
        self.count_file.touch()
        source = directory / "appends.c"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O2", "-o", self.program, source], check=True)
        self.environ = os.environ | {
            "XDG_STATE_HOME": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "config"),
        }
        self.environ.pop("CIEL_MASTER", None)

    def ciel(self, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(  # type: ignore[call-overload, no-any-return]  # passes options
            [CIEL, *words], env=self.environ, check=True, **options
        )

    def daemons(self) -> list[int]:
        """List the processes of the cluster, launcher included."""
        mark = f"XDG_STATE_HOME={self.environ['XDG_STATE_HOME']}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def down(self) -> None:
        """End the cluster if it runs."""
        if self.access_file.exists():
            self.ciel("down", "--force", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def access_file(self) -> Path:
        return current_path(self.environ)

    def submit(self, runs: int) -> float:
        """Return the duration of `runs` runs, as a user sees it."""
        self.count_file.write_bytes(b"")
        begun_s = time.perf_counter()
        self.ciel(
            "submit", "--quiet", "--array", f"1-{runs}", "--",
            str(self.program), str(self.count_file), "{}", stdout=subprocess.DEVNULL,
        )  # fmt: skip
        elapsed_s = time.perf_counter() - begun_s
        self.expect(runs)
        return elapsed_s

    def xargs(self, runs: int) -> float:
        """Return the duration of the same with xargs."""
        self.count_file.write_bytes(b"")
        numbers = "\n".join(map(str, range(1, runs + 1)))
        command = ["xargs", f"-P{AT_A_TIME}", "-n1", str(self.program), str(self.count_file)]
        begun_s = time.perf_counter()
        subprocess.run(command, input=numbers, text=True, check=True)
        elapsed_s = time.perf_counter() - begun_s
        self.expect(runs)
        return elapsed_s

    def expect(self, runs: int) -> None:
        ran = self.count_file.stat().st_size
        if ran != runs:
            raise RuntimeError(f"{ran} programs ran, not {runs}")


@contextmanager
def scene(where: str | None = None) -> Iterator[Scene]:
    """Start a cluster with its files in `where`, by default the directory for temporary files."""
    with tempfile.TemporaryDirectory(prefix="ciel-bench-", dir=where) as directory:
        made = Scene(Path(directory))
        made.ciel(
            "up", "--workers", "1", "--slots", str(AT_A_TIME), "--listen", "127.0.0.1:0",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield made
        finally:
            made.down()  # it may have ended already


def measure(runs: int = RUNS, pairs: int = PAIRS, where: str | None = None) -> Measurement:
    """Measure both in alternation, so that changes of the machine's speed affect both."""
    with scene(where) as made:
        made.submit(runs // 10)  # warm-up: page cache, prefetch
        daemons = made.daemons()
        ours, theirs = [], []
        client_s = daemons_s = 0.0
        for _ in range(pairs):
            before_s = sum(cpu_s(pid) for pid in daemons)
            own = resource.getrusage(resource.RUSAGE_CHILDREN)
            ours.append(made.submit(runs))
            own_after = resource.getrusage(resource.RUSAGE_CHILDREN)
            daemons_s += sum(cpu_s(pid) for pid in daemons) - before_s
            client_s += own_after.ru_utime + own_after.ru_stime - own.ru_utime - own.ru_stime
            theirs.append(made.xargs(runs))
    return Measurement(
        ciel_per_s=runs / statistics.median(ours),
        xargs_per_s=runs / statistics.median(theirs),
        ratio=statistics.median(their / our for our, their in zip(ours, theirs, strict=True)),
        cpu_us_client=client_s / (runs * pairs) * 1e6,
        cpu_us_daemons=daemons_s / (runs * pairs) * 1e6,
    )


if __name__ == "__main__":
    print(measure(where=sys.argv[1] if len(sys.argv) > 1 else None))
