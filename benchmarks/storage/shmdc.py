"""Measures how long libshmdc takes to load an object that is in memory, against open(2).

Expected: the library looks whether the daemon still holds the connection (a `recv` that returns at
once, 0.3 us), opens the file relative to a directory, and asks for its status (0.2 us): about a
microsecond more than open(2) of the whole path. A request to the daemon takes two wake-ups and the
work of an interpreter: 100 us or more.

The rounds measure in alternation; the figures are medians over all rounds.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ciel.shm.client import ShmdClient
from ciel.testing.homes import BIN

SDK = Path(__file__).parents[2] / "executors" / "sdk"
CALLS = 50_000
ROUNDS = 15
NAME = "4f2a:out:0"


def compiled(directory: Path) -> Path:
    """Compile the program against the library as it is installed."""
    program, source = directory / "shmdc-speed", Path(__file__).with_name("shmdc_speed.c")
    library = SDK / "lib"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{SDK / 'c'}"]
    links = [f"-L{library}", f"-Wl,-rpath,{library}", "-lshmdc"]
    subprocess.run(["cc", *flags, "-o", str(program), str(source), *links], check=True)
    return program


def measure(calls: int = CALLS, rounds: int = ROUNDS) -> dict[str, float]:
    """Return all figures, in microseconds."""
    with tempfile.TemporaryDirectory() as place:
        objects = Path(place, "objects")
        daemon = subprocess.Popen(
            [BIN / "ciel", "shmd", objects, "--capacity", "16MiB"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert daemon.stdout is not None
            daemon.stdout.readline()  # it serves
            with ShmdClient(objects) as client:
                path = client.write(NAME)
                Path(path).write_bytes(bytes(100_000))
                client.commit(path, NAME)
            program = compiled(Path(place))
            command = [str(program), str(objects), NAME, str(calls), str(rounds)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        finally:
            daemon.terminate()
            daemon.communicate()
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    plain, read, load, asked = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "open_us": plain,
        "read_us": read,
        "load_us": load,
        "request_us": asked,
        "beyond_open_us": statistics.median(row[1] - row[0] for row in rows),
    }


if __name__ == "__main__":
    assert shutil.which("cc"), "a C compiler is needed"
    calls, rounds = map(int, sys.argv[1:] or (CALLS, ROUNDS))
    print(json.dumps(measure(calls, rounds)))
