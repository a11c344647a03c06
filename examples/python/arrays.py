"""An array that one task produces and other tasks read in place.

`ciel.empty` returns memory of the store, so the array is never copied. Readers map the stored
array.

    python examples/python/arrays.py [MEBIBYTES]
"""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ciel

READERS = 4
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def numbers(count: int) -> Numbers:
    """Create an array in the store: 1, 2, 3 and so on."""
    array: Numbers = ciel.empty(count, np.float64)
    array.fill(1)
    return np.cumsum(array, out=array)


def mean(array: Numbers, part: int) -> tuple[float, int]:
    """Return the mean of one part of the array, and the private memory of this program in MiB."""
    length = len(array) // READERS
    found = float(array[part * length : (part + 1) * length].mean())
    status = Path("/proc/self/status").read_text()
    return found, int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) >> 10


def main() -> None:
    """Create one array, and make four tasks read it."""
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    options = {"slots": 2, "store": f"shm:capacity={2 * mebibytes}MiB"}
    with ciel.Client(cluster_options=options) as client:
        array = client.submit(numbers, mebibytes << 17)
        read = client.gather([client.submit(mean, array, part) for part in range(READERS)])
    print("means:", *(f"{found:.6g}" for found, _ in read))
    print(f"the array has {mebibytes} MiB; a reader had at most {max(own for _, own in read)} MiB")


if __name__ == "__main__":
    main()
