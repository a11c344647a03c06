"""Tests streams of ordinary programs on real clusters: long pipelines, and producers that die."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home

PIPELINE = """
import sys
from ciel import Client, LocalCluster

def streamed(job, line, inputs=()):
    args = {"command_line": line, "inputs": list(inputs), "stream_output": True}
    return job.add("stdinout", {"args": args})[0]

with LocalCluster(workers=1, slots=1) as cluster, Client(cluster) as client:
    with client.job("pipeline") as job:
        ref = streamed(job, ["seq", "1", "200000"])
        for _ in range(9):
            ref = streamed(job, ["cat"], [ref])
        print(job.read(job.run(["wc", "-l"], inputs=[ref]), timeout_s=60).decode().strip())
"""


def test_ten_stages_of_a_stream_finish_on_one_slot(home: Home) -> None:
    done = home.run("python", "-c", PIPELINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "200000"
    home.expect_nothing_left()


# Each producer dies once, after a given number of bytes and when both of its readers have started,
# on either worker. Then it is retried, and writes everything. Several producers run at a time, with
# a slot for each of their programs.
KILLED = """
import json, sys
from ciel import Client
from ciel.core.tasks import Needs

SIZE, OFFSETS, AT_A_TIME = int(sys.argv[3]), int(sys.argv[4]), 25
ONCE = (
    'if mkdir "$1" 2>/dev/null; then head -c "$2" "$3"; '
    'until [ -e "$1.0" ] && [ -e "$1.1" ]; do sleep 0.01; done; kill -9 $$; fi; cat "$3"'
)
BEGIN = ': >"$0"; exec "$@"'
READERS = (["sha256sum"], ["tail", "-c", "1"])

with Client() as client, client.job("killed") as job:
    found, sums = [], []
    for number in range(OFFSETS):
        offset, mark = SIZE * number // (OFFSETS - 1), f"{sys.argv[2]}/{number}"
        args = {
            "command_line": ["sh", "-c", ONCE, "sh", mark, offset, sys.argv[1]],
            "stream_output": True,
        }
        (made,) = job.add("stdinout", {"args": args}, needs=Needs(retries=1))
        for which, reader in enumerate(READERS):
            sums.append(job.run(["sh", "-c", BEGIN, f"{mark}.{which}", *reader], inputs=[made]))
        if len(sums) == AT_A_TIME * len(READERS):
            job.want(sums)
            found += [job.read(ref, timeout_s=60).decode(errors="replace") for ref in sums]
            sums = []
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_producer_killed_at_100_offsets_never_leads_to_a_wrong_result(
    home: Home, tmp_path: Path
) -> None:
    """Every other reader stops only at the end, and one of each pair reads hardly anything."""
    content = bytes(range(256)) * 800  # 200 KiB: a producer writes it in several steps
    (tmp_path / "content").write_bytes(content)
    marks = tmp_path / "marks"
    marks.mkdir()
    arguments = [str(tmp_path / "content"), str(marks), str(len(content)), "100"]
    cluster = HandCluster.start(home, 2, "--slots", "38")
    done = home.run("python", "-c", KILLED, *arguments, timeout_s=110)
    cluster.stop()
    assert done.returncode == 0, done.stderr
    expected = [hashlib.sha256(content).hexdigest() + "  -\n", "\ufffd"]
    assert json.loads(done.stdout) == expected * 100
    assert len(list(marks.iterdir())) == 300, "each of them died once, when it was read twice"
