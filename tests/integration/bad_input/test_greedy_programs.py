"""Tests programs that write too much, and a thousand that misbehave: the cluster stays as it
was.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ciel.execution.kept import KEPT_ATTEMPTS_MAX
from ciel.worker.limits.growth import STDERR_LEFT_BYTES
from ciel_tests.clusters.two_slots import Ends, TwoSlots

pytestmark = pytest.mark.slow

GIB = 1 << 30
MIB = 1 << 20

# --- programs that write too much -----------------------------------------------------------------


def occupied_bytes(path: Path) -> int:
    found = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                found += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
    return found


def most_while(sample: Callable[[], int], action: Callable[[], Any]) -> tuple[int, Any]:
    """Call `action`; return the largest sample taken meanwhile, and the result."""
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            most.append(sample())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        done = action()
    finally:
        over.set()
        watcher.join()
    return max(most), done


def test_a_gigabyte_on_standard_error_fills_neither_disk_nor_memory(cluster: TwoSlots) -> None:
    before_bytes = cluster.memory_bytes()
    script = f"#!/bin/sh\nyes wrong!! | head -c {GIB} >&2\necho 'the last words' >&2\nexit 1\n"
    cluster.add_program("complain", script)
    most_bytes, done = most_while(
        lambda: occupied_bytes(cluster.spool / "scratch"),
        lambda: cluster.submit("--", "./complain"),
    )
    said = (
        "ciel: HOME/complain ended with exit status 1 on worker W\n"
        "the end of its standard error:\n"
        f"  ({GIB - 39 * 8} bytes omitted)\n" + "  wrong!!\n" * 39 + "  the last words\n"
        "its files are kept in SPOOL/kept/TASK.1\n"
    )
    assert cluster.ends(done) == Ends(1, "", said)
    assert STDERR_LEFT_BYTES < most_bytes < 0.9 * GIB
    (kept,) = [path for path in cluster.kept() if occupied_bytes(path) > STDERR_LEFT_BYTES // 2]
    assert occupied_bytes(kept) < 2 * STDERR_LEFT_BYTES
    after_bytes = cluster.memory_bytes()
    assert all(after_bytes[name] < before_bytes[name] + 4 * MIB for name in before_bytes)


@pytest.mark.parametrize("store", ["disk:", "shm:spill=no,"], ids=["disk", "shm"])
def test_a_program_whose_output_exceeds_the_store_is_ended(tmp_path: Path, store: str) -> None:
    with TwoSlots(tmp_path, "--store", f"{store}capacity=100MiB") as cluster:
        place = cluster.spool / "store"
        if store.startswith("shm"):
            instance = Path(f"/proc/{cluster.pid('worker')}/cmdline").read_text().split("instance=")
            place = Path("/dev/shm", f"ciel-{instance[1].split(chr(0))[0]}")
        most_bytes, done = most_while(
            lambda: occupied_bytes(place),
            lambda: cluster.submit("--", "head", "-c", str(GIB), "/dev/zero"),
        )
        (wanted,) = re.findall(r"wanted ([\d.]+) MiB", done.stderr)
        said = (
            f"ciel: head -c {GIB} /dev/zero wrote more than the store of worker W has room for: "
            f"wanted {wanted} MiB, 100 MiB available; "
            "give the worker a larger store, or end jobs whose results it retains\n"
        )
        assert cluster.ends(done) == Ends(1, "", said)
        assert 100 < float(wanted) < 1024
        assert most_bytes < GIB
        assert cluster.kept() == []
        whole = cluster.submit("--", "sh", "-c", f"head -c {100 * MIB} /dev/zero; exit 3")
        assert "ended with exit status 3" in whole.stderr  # the refused output holds no space
        cluster.expect_as_before()


# --- a thousand misbehaving programs --------------------------------------------------------------

LINE_BYTES = 10_000_000
MIXED = f"""#!/bin/sh
case $(($1 * 7919 % 50)) in
0) head -c {LINE_BYTES} /dev/zero ;;
[1-9]) exit 3 ;;
1[0-9]) kill -SEGV $$ ;;
2[0-9]) ;;
3[0-9]) printf '\\377\\376\\n'; printf 'bad \\377\\n' >&2 ;;
4[0-4]) printf 'no end' ;;
*) printf 'bad \\376' >&2; exit 4 ;;
esac
"""


def expected(number: int) -> tuple[str, str | int]:
    """Return the expected result of a run: its output or size, or the text of its failure."""
    match number * 7919 % 50:
        case 0:
            return "done", LINE_BYTES
        case drawn if drawn < 10:
            return "failed", "ended with exit status 3 on worker W\n"
        case drawn if drawn < 20:
            return "failed", "was killed by SIGSEGV on worker W\n"
        case drawn if drawn < 30:
            return "done", ""
        case drawn if drawn < 40:
            return "done", "\\xff\\xfe\n"
        case drawn if drawn < 45:
            return "done", "no end"
    return "failed", (
        "ended with exit status 4 on worker W\n"
        "the end of its standard error:\n  bad \N{REPLACEMENT CHARACTER}\n"
    )


def told(cluster: TwoSlots, line: dict[str, Any]) -> tuple[str, str | int]:
    if line["state"] == "done":
        output = line.get("output", line["size_bytes"])
        if line.get("encoding") == "base64":
            output = base64.b64decode(output).decode(errors="backslashreplace")
        return "done", output
    command = f"{cluster.home.path}/mixed {line['element']} "
    story = cluster.plain(line["story"].removeprefix(command))
    return "failed", re.sub(r"its files are kept in SPOOL/kept/TASK\.1$", "", story)


def test_a_thousand_programs_that_misbehave_leave_the_cluster_as_it_was(cluster: TwoSlots) -> None:
    cluster.add_program("mixed", MIXED)

    def run(array: str) -> None:
        done = cluster.submit("--json", "--array", array, "--", "./mixed", "{}")
        *lines, summary = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 1, done.stderr
        wrong = [line for line in lines if told(cluster, line) != expected(line["number"])]
        assert not wrong, wrong[0]
        counts = Counter(line["state"] for line in lines)
        assert summary["job"]["counts"] == dict(counts)

    run("1-1000")  # afterwards the worker has all threads that verify objects
    cluster.expect_as_before()
    first_bytes = cluster.memory_bytes()
    run("1001-1800")
    cluster.expect_as_before()
    last_bytes = cluster.memory_bytes()
    # The worker remembers the latest ten thousand attempts (0.6 KiB each, and free space between
    # them), the master the result of each task until its job is removed.
    for daemon in ("worker", "master"):
        assert last_bytes[daemon] < 1.05 * first_bytes[daemon] + 800 * 4096
    assert len(cluster.kept()) == KEPT_ATTEMPTS_MAX
