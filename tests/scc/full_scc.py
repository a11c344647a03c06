"""Run with a /dev/shm of 4 MiB: an image that has no room there is refused, and leaves it empty."""

import os
from pathlib import Path

import pytest

from ciel.scc.store import open_scc
from ciel.storage.errors import NoSpaceError


def main() -> None:
    with pytest.raises(NoSpaceError) as caught:
        open_scc({"capacity": "8MiB", "cores": "1", "spill": "no"}, Path())
    assert caught.value.wanted_bytes == 8 * 2**20 > caught.value.available_bytes
    assert os.listdir("/dev/shm") == []

    options = {"capacity": "2MiB", "block": "4096", "cores": "1", "spill": "no"}
    with open_scc(options, Path()) as store:
        other = Path("/dev/shm/other")
        with other.open("wb", buffering=0) as file:  # another client takes the remaining blocks
            while True:
                try:
                    file.write(bytes(4096))
                except OSError:
                    break
        store.put("a", bytes(2 * 2**20))
        with store.open("a") as reader:
            assert reader.view() == bytes(2 * 2**20)  # were its pages not there, this would end us
        with pytest.raises(NoSpaceError):
            store.put("b", b"x")
        store.delete("a")
        store.put("b", b"x" * 2**20)
        other.unlink()
    assert os.listdir("/dev/shm") == []


main()
