"""Runs with a /dev/shm of 16 MiB: the store refuses a program a block while the device is full. A
moment later the block fits, because another store, or a reader of a deleted object, has freed
memory.
"""

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from ciel.scc.store import open_scc
from ciel.shm.store import open_shm
from ciel.storage.interface import ObjectStore

MIB = 2**20


def opened(place: str) -> ObjectStore:
    options = {"capacity": "4MiB", "cores": "1", "spill": "no"}
    if os.environ["FULL_STORE"] == "scc":
        return open_scc(options, Path(place))
    return open_shm({"capacity": "1GiB", "spill": "no"}, Path(place))


def fill(path: str) -> None:
    """Write as a program does that ignores errors."""
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(MIB)) == MIB:
            pass


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        open_shm({"capacity": "1GiB", "spill": "no"}, Path(place)) as other,
        opened(place) as store,
    ):
        other.put("large", bytes(3 * MIB))
        # the store does not recycle the memory of named objects
        with other.begin("named") as writer:
            Path(str(writer.path)).write_bytes(bytes(3 * MIB))
            writer.commit()
        with store.begin("fine") as writer:
            Path(str(writer.path)).write_bytes(bytes(MIB))
            other.delete("large")
            assert not writer.may_be_short, "a device that is not full"
        for gives_back in ("a reader", "a deletion", "an abort"):
            if "named" not in other:
                with other.begin("named") as writer:
                    Path(str(writer.path)).write_bytes(bytes(3 * MIB))
                    writer.commit()
            reader, dropped = other.open("named"), other.begin("dropped")
            Path(str(dropped.path)).write_bytes(bytes(2 * MIB))
            if gives_back == "a reader":
                other.delete("named")
            with store.begin("short") as writer:
                fill(str(writer.path))
                if gives_back == "an abort":
                    dropped.abort()
                else:
                    reader.close()
                    other.delete("named")
                assert writer.may_be_short, gives_back
            reader.close()
            dropped.abort()
    sys.exit(0)


main()
