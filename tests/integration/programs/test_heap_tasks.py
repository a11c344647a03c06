"""Tests that programs whose heap lies in a store run as tasks (KVM-1, KVM-5)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home
from ciel_tests.clusters.lenders import Lenders
from ciel_tests.heaps import HEAP_TESTS, ciel_cc, plain, run, translated, why_no_compiler

if reason := why_no_compiler():
    pytest.skip(reason, allow_module_level=True)

pytestmark = pytest.mark.requirement("KVM-1", "KVM-2", "KVM-3", "KVM-5")

EXAMPLE = Path(__file__).parents[3] / "examples" / "heap" / "sort.c"
RECORD_BYTES, KEY_BYTES = 100, 10


@pytest.mark.slow
def test_a_task_sorts_more_than_its_limit_of_memory(home: Home, tmp_path: Path) -> None:
    assert ciel_cc("-O2", EXAMPLE, "-o", home.path / "sort").returncode == 0
    chance = random.Random(26)
    records = [chance.randbytes(RECORD_BYTES) for _ in range(300_000)]
    (home.path / "records").write_bytes(b"".join(records))
    plainly = ("ciel", "submit", "--memory", "24M", "--")
    limited = ("env", f"CIEL_HEAP=lmdb:{tmp_path / 'heap'}", "CIEL_HEAP_RAM=8MiB")
    here = str(home.path)
    failed = home.run(*plainly, f"{here}/sort", f"{here}/records")
    assert failed.returncode != 0
    assert "memory" in failed.stderr
    command = f"{here}/sort {here}/records > {here}/sorted"
    done = home.run(*plainly, *limited, "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    records.sort(key=lambda record: record[:KEY_BYTES])
    assert (home.path / "sorted").read_bytes() == b"".join(records)


@pytest.mark.slow
def test_a_heap_lies_in_memory_of_other_machines(lasting_cluster: HandCluster) -> None:
    home = lasting_cluster.home
    lenders = Lenders(home)
    try:
        lenders.start("32MiB")
        lenders.start("32MiB")
        lenders.create("heap", "16MiB", 2)
        source = HEAP_TESTS / "programs" / "text_buffers.c"
        expected = run(plain(source, home.path))
        program = translated(source, home.path, "heap")
        settings = ("env", "CIEL_HEAP=memory:heap", "CIEL_HEAP_RAM=256KiB")
        done = home.run(*settings, str(program))
        assert (done.returncode, done.stdout, done.stderr) == (0, expected.out, "")
        names = ("CIEL_MASTER", "CIEL_ACCESS")  # which a task does not get by itself
        where = [f"{name}={home.environ[name]}" for name in names if name in home.environ]
        task = home.run("ciel", "submit", "--", *settings, *where, str(program))
        assert (task.returncode, task.stdout) == (0, expected.out), task.stderr
        lenders.ciel("remove", "heap")
    finally:
        lenders.leave()


@pytest.mark.slow
def test_a_volume_that_is_full_ends_the_program(lasting_cluster: HandCluster) -> None:
    home = lasting_cluster.home
    lenders = Lenders(home)
    try:
        lenders.start("32MiB")
        lenders.create("small", "1MiB", 1)
        program = translated(HEAP_TESTS / "programs" / "text_buffers.c", home.path, "heap")
        done = home.run("env", "CIEL_HEAP=memory:small", "CIEL_HEAP_RAM=256KiB", str(program))
        assert done.returncode == 74
        assert "pages could not be written to memory:small: the volume is full" in done.stderr
        lenders.ciel("remove", "small")
    finally:
        lenders.leave()
