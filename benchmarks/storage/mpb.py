"""Compares the cost of messages between two cores with the cost of the memory between them.

Expected, before it was measured: a round trip moves six cache lines from one processor to the
other, three in each direction (the flag, the piece, the flag that acknowledges it), of 0.1 us each,
and takes 0.3 us of instructions: about 1 us, where a single word there and back takes 0.25. One
core writes a piece of 4 KiB while the second one reads it, at the cost of lines that change owners
(some 5 GB/s), plus 0.3 us of flags: 2 to 4 GB/s, far from a memcpy within one cache. Both cores
poll; if other programs use their processors, a round trip takes a wake-up, some 50 us.
"""

from __future__ import annotations

import statistics
import subprocess
from dataclasses import dataclass

from ciel.testing.c_programs import compiled

SOURCES = ("src/port.c", "src/mpb.c", "src/mpb_pieces.c", "src/rcce.c", "tests/mpb_speed.c")
ROUNDS = 9
MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """Medians; each round measures all of them in sequence."""

    trip_us: float
    bare_trip_us: float  # two words that both poll
    trip_ratio: float
    one_way_gb_per_s: float
    both_ways_gb_per_s: float
    memcpy_gb_per_s: float
    copy_ratio: float  # one way against memcpy
    one_way_8_gb_per_s: float  # in a segment for eight cores
    trip_8_us: float


def measure(rounds: int = ROUNDS) -> Measurement:
    """Measure everything, in segments for two cores and for eight."""
    rows = figures(2, rounds)
    wider = figures(8, max(1, rounds // 3))
    columns = zip(*rows, strict=True)
    trips, bare, one_way, both_ways, memcpy = (statistics.median(column) for column in columns)
    return Measurement(
        trip_us=trips,
        bare_trip_us=bare,
        trip_ratio=statistics.median(row[0] / row[1] for row in rows),
        one_way_gb_per_s=one_way,
        both_ways_gb_per_s=both_ways,
        memcpy_gb_per_s=memcpy,
        copy_ratio=statistics.median(row[2] / row[4] for row in rows),
        one_way_8_gb_per_s=statistics.median(row[2] for row in wider),
        trip_8_us=statistics.median(row[0] for row in wider),
    )


def figures(cores: int, rounds: int) -> list[list[float]]:
    """Run the program; return a row for each round."""
    program = compiled("mpb-speed", SOURCES, flags=("-O2",))
    command = [str(program), str(cores), str(rounds), str(MESSAGE_BYTES)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]


if __name__ == "__main__":
    print(measure())
