"""Run with a /dev/shm of 64 MiB: an arena works there, mounted or not."""

import os
import sys
from pathlib import Path

from ciel.shm.store import open_shm
from ciel.storage.errors import NoSpaceError


def main() -> None:
    options = {"arena": "yes", "spill": "no"}
    with open_shm(options | {"capacity": "32MiB"}, Path(sys.argv[1])) as store:
        for round_number in range(4):
            for number in range(7):
                store.put(f"o{number}", bytes([round_number]) * (4 << 20))
            try:
                store.put("more", bytes(8 << 20))
            except NoSpaceError as error:
                assert error.available_bytes == 4 << 20  # noqa: PT017
            for number in range(7):
                assert store.get(f"o{number}")[-1] == round_number
                store.delete(f"o{number}")
        assert store.check() == []
    assert os.listdir("/dev/shm") == []


main()
