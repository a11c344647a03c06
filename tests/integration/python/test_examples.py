"""Checks that each Python example gives the value that this file computes in another way, in every
store.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import Home
from ciel_tests.clusters.hosts import Hosts, TwoHosts
from ciel_tests.clusters.two_slots import TwoSlots

STORES = (
    "disk", "shm:capacity=256MiB", "scc:capacity=256MiB", "scc:capacity=256MiB,build=flushing"
)  # fmt: skip
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"


@pytest.fixture(scope="module", params=STORES)
def shared_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoSlots]:
    """Start a cluster for each store."""
    with TwoSlots(tmp_path_factory.mktemp("two-slots"), "--store", request.param) as cluster:
        yield cluster


def printed(home: Home, name: str, *words: object) -> str:
    done = home.run(sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, words))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_fib(shared_cluster: TwoSlots) -> None:
    assert printed(shared_cluster.home, "fib", 18) == "2584\n"


@pytest.mark.parametrize("size, ways", [(1, 1), (3, 0), (6, 4), (9, 352)])
def test_queens(shared_cluster: TwoSlots, size: int, ways: int) -> None:
    assert printed(shared_cluster.home, "queens", size) == f"{ways}\n"


def test_words(shared_cluster: TwoSlots) -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    counts = Counter(re.findall("[a-z]+", "".join(file.read_text() for file in files).lower()))
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
    lines = printed(shared_cluster.home, "words", *files).splitlines()
    assert [(word, int(count)) for count, word in map(str.split, lines)] == most


def test_crawler(home: Home) -> None:
    lines = printed(home, "crawler").splitlines()
    assert lines == ["40 pages", "    40 /0", *(f"     1 /{n}" for n in (1, 10, 11, 12))]


@pytest.mark.slow
def test_arrays(home: Home) -> None:
    """The example starts its own cluster, with a store in memory."""
    mebibytes, readers = 64, 4
    means, sizes = printed(home, "arrays", mebibytes).splitlines()
    part = (mebibytes << 17) // readers
    expected = [(2 * number + 1) * part / 2 + 0.5 for number in range(readers)]
    assert means.split()[1:] == [f"{mean:.6g}" for mean in expected]
    own = re.fullmatch(r"the array has 64 MiB; a reader had at most (\d+) MiB", sizes)
    assert own is not None
    assert int(own[1]) < mebibytes  # no copy
    home.expect_nothing_left()


def require_tables() -> None:
    pytest.importorskip("pyarrow")
    from ciel.arrow.pool import why_not

    if reason := why_not():
        pytest.skip(f"no buffers in the store here: {reason}")


def copied_bytes_of(output: str, rows: int, files: int) -> int:
    """Check the output of the example; return how many bytes it says were copied."""
    *sums, fit, last = output.splitlines()
    numbers = range(rows * files)
    assert [line.split() for line in sums] == [
        [str(k), f"{sum(numbers[k::5]) * 0.5}"] for k in range(5)
    ]
    assert fit.startswith("fit: ")
    total = sum(numbers) * 0.5
    found = re.fullmatch(
        rf"{rows * files} rows in {files} chunks; (\d+) bytes were copied, the sum of v is {total}",
        last,
    )
    assert found is not None
    return int(found[1])


def test_tables(shared_cluster: TwoSlots) -> None:
    require_tables()
    rows, files = 50_000, 3
    assert copied_bytes_of(printed(shared_cluster.home, "tables", rows, files), rows, files) == 0


@pytest.mark.slow
def test_tables_of_two_hosts(tmp_path: Path) -> None:
    """Both hosts have the directory of the files. Tables from the other host are copied."""
    require_tables()
    rows, files = 50_000, 4
    with tempfile.TemporaryDirectory(dir="/var/tmp") as shared, Hosts(tmp_path) as (here, there):
        cluster = TwoHosts(here, there)
        for host in (here, there):
            cluster.start_worker(host)
        there.environ["TMPDIR"] = shared
        output = printed(there, "tables", rows, files)
    content_bytes = rows * files * 2 * 8  # of two columns; and the texts
    assert 0 < copied_bytes_of(output, rows, files) < 2 * content_bytes


def test_every_example_is_tested_and_listed() -> None:
    listed = (EXAMPLES.parent / "README.md").read_text()
    for example in EXAMPLES.glob("*.py"):
        assert f"test_{example.stem}" in globals()
        assert f"examples/python/{example.name}" in listed
