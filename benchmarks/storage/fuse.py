"""Compares the mount of shmfs with tmpfs, in the same run and in alternation.

Each `open` asks the server; the content of committed files comes from the kernel's page cache.
"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ciel.testing.shm_mounts import can_mount, mounted
from ciel.testing.shm_tools import fresh_image

PAIRS = 9
OPENS = 5_000
CREATES = 400
SIZE_BYTES = 256 << 20
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Measurement:
    """Medians; ratios are medians of the ratios of pairs."""

    opens_per_s: float
    tmpfs_opens_per_s: float
    creates_per_s: float
    tmpfs_creates_per_s: float
    cached_read_gb_per_s: float
    tmpfs_read_gb_per_s: float
    read_ratio: float
    write_gb_per_s: float
    tmpfs_write_gb_per_s: float


def measure(pairs: int = PAIRS) -> Measurement:
    """Measure both in alternation, so that changes of the machine's speed affect both."""
    if not can_mount():
        raise SystemExit("shmfs cannot be mounted here: `ciel shmfs mount DIR` says why")
    with (
        tempfile.TemporaryDirectory(prefix="ciel-bench-") as place,
        tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as memory,
        fresh_image() as image,
        mounted(image, Path(place)),
    ):
        rounds = [tuple(_round(Path(where)) for where in (place, memory)) for _ in range(pairs)]
    ours = [statistics.median(values) for values in zip(*(o for o, _ in rounds), strict=True)]
    theirs = [statistics.median(values) for values in zip(*(t for _, t in rounds), strict=True)]
    return Measurement(
        opens_per_s=ours[0],
        tmpfs_opens_per_s=theirs[0],
        creates_per_s=ours[1],
        tmpfs_creates_per_s=theirs[1],
        write_gb_per_s=ours[2],
        tmpfs_write_gb_per_s=theirs[2],
        cached_read_gb_per_s=ours[3],
        tmpfs_read_gb_per_s=theirs[3],
        read_ratio=statistics.median(o[3] / t[3] for o, t in rounds),
    )


def _round(place: Path) -> tuple[float, float, float, float]:
    """Return opens and creates per second, and GB/s written and read from the cache."""
    small = place / "small"
    small.write_bytes(bytes(4096))
    small.chmod(0o444)
    begun_s = time.perf_counter()
    for _ in range(OPENS):
        os.close(os.open(small, os.O_RDONLY))
    opens = OPENS / (time.perf_counter() - begun_s)
    small.unlink()
    creates = _creates(place)
    written, read = _contents(place / "large")
    return opens, creates, written, read


def _creates(place: Path) -> float:
    begun_s = time.perf_counter()
    for n in range(CREATES):
        fd = os.open(place / f"{n}", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644)
        os.write(fd, b"x" * 100)
        os.close(fd)
    rate = CREATES / (time.perf_counter() - begun_s)
    for n in range(CREATES):
        (place / f"{n}").unlink()
    return rate


def _contents(path: Path) -> tuple[float, float]:
    piece = bytearray(PIECE_BYTES)
    begun_s = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(SIZE_BYTES // PIECE_BYTES):
            file.write(piece)
    written = SIZE_BYTES / 1e9 / (time.perf_counter() - begun_s)
    path.chmod(0o444)
    best = 0.0
    for _ in range(3):  # the first read fills the cache
        begun_s = time.perf_counter()
        with open(path, "rb", buffering=0) as file:
            while file.readinto(piece):
                pass
        best = max(best, SIZE_BYTES / 1e9 / (time.perf_counter() - begun_s))
    path.unlink()
    return written, best


if __name__ == "__main__":
    result = measure()
    for key in result.__slots__:
        print(f"{key}: {getattr(result, key):,.2f}")
