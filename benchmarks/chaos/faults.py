"""Causes failures: periodic kills, flipped bits, small disks, failing calls, wrong clocks."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from benchmarks.chaos.rows import CannotRunError

CLOCK: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

/* The file of CHAOS_CLOCK contains the seconds that this host's clock is ahead. */
static const long *ahead;

__attribute__((constructor)) static void open_clock(void)
{
    int fd = open(getenv("CHAOS_CLOCK"), O_RDONLY | O_CLOEXEC);
    void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*true_clock)(clockid_t, struct timespec *);
    if (!true_clock)
        true_clock = dlsym(RTLD_NEXT, "clock_gettime");
    int result = true_clock(clock, now);
    if (ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead;
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place)
        *place = now.tv_sec;
    return now.tv_sec;
}
"""


class Every:
    """Repeats an action in a thread until its block ends, and counts it. An exception of the action
    is raised at the end of the block, also if the block has failed.
    """

    def __init__(self, every_s: float, act: Callable[[], object]) -> None:
        self.count = 0
        self._every_s = every_s
        self._act = act
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._repeat)

    def _repeat(self) -> None:
        try:
            while not self._over.wait(self._every_s):
                self.count += 1
                self._act()
        except Exception as error:  # raised again by the thread that waits
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def pause(seconds: float) -> None:
    """Let a failure last for a time, or wait between two looks at something."""
    threading.Event().wait(seconds)


def require(*programs: str) -> None:
    """Raise CannotRunError if the machine lacks a program, or if this user may not use it."""
    if missing := [program for program in programs if shutil.which(program) is None]:
        raise CannotRunError(f"{', '.join(missing)} not found")
    if os.geteuid() != 0:
        raise CannotRunError("needs root")


def flip_bit(path: Path, place: int) -> None:
    """Flip one bit of a stored object, whose times and mode stay as they were."""
    status = path.stat()
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << place % 8]))
    path.chmod(status.st_mode & 0o7777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def on_tmpfs(options: str, place: Path | str) -> list[str]:
    """Return the start of a command line: the program that follows has a tmpfs at `place`, which
    others do not see.
    """
    require("unshare", "mount")
    shell = f'mount -t tmpfs -o {options} none {place} && exec "$@"'
    return ["unshare", "-m", "sh", "-c", shell, "sh"]


def failing_call(call: str, first: int, log: Path) -> list[str]:
    """Return the start of a command line: in the program that follows, a system call fails with EIO
    from its `first` time on.
    """
    require("strace")
    inject = f"inject={call}:error=EIO:when={first}+"
    return ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}", "-e", inject]


def build_clock(directory: Path) -> Path:
    """Build the library that shows a wrong time to the programs that preload it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise CannotRunError("no C compiler found")
    source, library = directory / "clock.c", directory / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True
    )
    return library
