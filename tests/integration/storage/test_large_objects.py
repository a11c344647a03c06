"""Passes an object of 1 GiB between two tasks of one host, in memory that all workers share: a
reader that maps it makes no copy. `python/test_arrays.py` does the same with files.

Takes 2.3 GiB of memory and 3 s.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ciel.client import Client, LocalCluster
from ciel.testing.homes import wait_for

pytestmark = pytest.mark.slow

GIB = 1 << 30
SPEC = {"capacity": "1280MiB", "cores": "4"}

# Attaches as another core, and prints both ends of the object and the memory that it allocated.
READER = """
import re, sys
from pathlib import Path
from ciel.scc.store import open_cores

def own_bytes():
    return int(re.findall(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0]) << 10

spec, name, directory = eval(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
with open_cores(spec) as store:
    before = own_bytes()
    assert store.discover(name)
    with store.open(name) as reader:
        content = reader.view()
        is_right = content[:4] == b"aaaa" and content[-4:] == b"aaaa"
        print(len(content), is_right, store.copies.copied_bytes, own_bytes() - before < 16 << 20)
        del content
"""


def copied_bytes(client: Client) -> int:
    return sum(int(level["copied_bytes"]) for level in client.ask("stores"))


def test_a_reader_maps_a_gibibyte_without_a_copy(tmp_path: Path) -> None:
    store = "scc:" + ",".join(f"{name}={value}" for name, value in SPEC.items())
    with (
        LocalCluster(workers=1, slots=1, store=store) as cluster, Client(cluster) as client,
        client.job() as job,
    ):  # fmt: skip
        letters = f"head -c {GIB} /dev/zero | tr '\\0' a"
        made = job.result(job.run(["sh", "-c", letters]), timeout_s=60)
        # The program wrote a file, which was copied into the store.
        wait_for(lambda: copied_bytes(client) == GIB, "the count of what was copied")
        spec = {**SPEC, "instance": cluster._stores.names[0]}
        words = [sys.executable, "-c", READER, repr(spec), made.id, str(tmp_path)]
        assert job.read(job.run(words), timeout_s=60) == f"{GIB} True 0 True\n".encode()
        assert copied_bytes(client) == GIB
