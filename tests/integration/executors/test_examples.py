"""Checks that each example gives the value that this file computes in another way, with the same
bytes in every store, and also when a worker is killed.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sysconfig
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest

from ciel.cli.jobs.queries import has_ended, list_jobs
from ciel.client import Client
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.installed.languages import require_jansson

EXAMPLES = Path(__file__).parents[3] / "examples"
SDK = Path(__file__).parents[3] / "executors" / "sdk" / "c"
STORES = ("disk", "shm:capacity=512MiB", "scc:capacity=512MiB,cores=2,instance=examples-{pid}")
WORKERS = 3
TRIES = 8
IS_LONG = os.environ.get("CIEL_LONG") == "1"

Run = Callable[..., Any]
"""Runs an example with variables and files by their keys; returns its value."""


def command(name: str, given: dict[str, object]) -> list[str]:
    """Return the command of an example; a path among the variables is a file to send."""
    words = ["sw-job"]
    for key, value in given.items():
        words += ["-p", key, str(value)] if isinstance(value, Path) else ["-E", f"{key}={value}"]
    return [*words, str(EXAMPLES / name / f"{name}.sw")]


class Lab:
    """A cluster of three workers, one of which may be killed and is then replaced."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._cluster = HandCluster.start(home, 0)
        self._alive = [self._cluster.start_worker() for _ in range(WORKERS)]
        self._client = Client(environ=home.environ)

    def close(self) -> None:
        self._client.close()
        self._cluster.stop()
        assert not self.home.processes()

    def run_and_kill(self, number: int, name: str, **given: object) -> Any:
        """Run an example, and kill a worker when some of its tasks are done. The example may have
        ended by then, so it runs up to a few times.
        """
        for _ in range(TRIES):
            known = len(list_jobs(self._client))
            started = self.home.start(*command(name, given))
            wait_for(partial(self._is_under_way, known), f"the first tasks of {name}")
            self._alive[number].kill()
            is_over = has_ended(list_jobs(self._client)[-1])
            self._alive[number].communicate(timeout=20)
            printed, said = started.communicate(timeout=60)
            self._alive[number] = self._cluster.start_worker()
            assert started.returncode == 0, said
            if not is_over:
                return json.loads(printed)
        raise AssertionError(f"{name} was over {TRIES} times before a worker was killed")

    def _is_under_way(self, known: int) -> bool:
        jobs = list_jobs(self._client)
        return len(jobs) > known and jobs[-1].counts.get("done", 0) > 2


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(Home(tmp_path_factory.mktemp("examples")))
    yield lab
    lab.close()


# --- expected values ------------------------------------------------------------------------------


def flat(table: list[list[float]]) -> list[float]:
    return [number for row in table for number in row]


def fib(run: Run, path: Path) -> None:
    assert run(N=16) == 987


def wordcount(run: Run, path: Path) -> None:
    """Count words in the text of Python's reference, which every Python has for `help`."""
    text = path / "text"
    text.write_text("\n".join(topics.values()))
    counts = Counter(re.findall("[a-z]+", text.read_text().lower()))
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    assert list(run(text=text, MOST=20, PARTS=5).items()) == most[:20]


def library() -> list[Path]:
    """Return the sources of the standard library without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    found = (path for path in root.rglob("*.py") if path.is_file())
    return [
        path for path in found if not {"site-packages", "test"} & {*path.relative_to(root).parts}
    ]


def grep(run: Run, path: Path) -> None:
    word = re.compile(rb"^.*(?<!\w)lambda(?!\w)", re.MULTILINE)
    counts = {str(path): len(word.findall(path.read_bytes())) for path in library()}
    value = run(WORD="lambda")
    assert value["files"] == len(counts)
    assert value["lines"] == sum(counts.values())
    most = sorted(counts, key=lambda path: (-counts[path], path))[:5]
    assert value["most"] == [f"{path}:{counts[path]}" for path in most]


def kmeans(run: Run, path: Path) -> None:
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_iris

    k = 3
    points = load_iris().data
    model = KMeans(k, init=points[:: len(points) // k][:k], n_init=1, tol=0)
    sizes = Counter(model.fit_predict(points).tolist())
    value = run(K=k, PARTS=3)
    assert value["sizes"] == [sizes[number] for number in range(k)]
    assert flat(value["middles"]) == pytest.approx(
        model.cluster_centers_.flatten().tolist(), rel=1e-9
    )
    assert value["rounds"] == model.n_iter_


def binomial(run: Run, path: Path) -> None:
    require_jansson()
    program = path / "binomial"
    sources = (EXAMPLES / "binomial" / "binomial.c", SDK / "ciel.c")
    subprocess.run(
        ["cc", "-O2", f"-I{SDK}", "-o", program, *sources, "-ljansson", "-lm"], check=True
    )
    assert run(binomial=program, STEPS=100, CHUNK=10) == 10.341476489
    assert run(binomial=program, STEPS=1000, CHUNK=100) == 10.328694366


def smithwaterman(run: Run, path: Path) -> None:
    bio: Any = import_module("Bio.Align")  # it has no types
    aligner = bio.PairwiseAligner(mode="local", match_score=2, mismatch_score=-1, gap_score=-1)
    files = [EXAMPLES / "smithwaterman" / f"{name}.fasta" for name in ("alpha", "beta")]
    one, other = ("".join(file.read_text().splitlines()[1:]) for file in files)
    assert run(TILE=40) == aligner.score(one, other)


def timespin(run: Run, path: Path) -> None:
    program = path / "timespin"
    source = EXAMPLES / "timespin" / "timespin.c"
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    assert run(timespin=program, TASKS=60, MS=20) == 60 * 20


def mandelbrot(run: Run, path: Path) -> None:
    """Read the picture; the set is black, and the halves above and below the real axis are
    equal.
    """
    width, height, file = 96, 64, path / "set.png"
    assert run(WIDTH=width, HEIGHT=height, STRIP=10, OUT=str(file)) == str(file)
    content = file.read_bytes()
    assert struct.unpack(">II", content[16:24]) == (width, height)
    data = zlib.decompress(content[content.index(b"IDAT") + 4 : -16])
    rows = [data[start + 1 : start + 1 + 3 * width] for start in range(0, len(data), 3 * width + 1)]
    assert rows == rows[::-1]
    for y, row in enumerate(rows):
        for x in range(width):
            is_black = row[3 * x : 3 * x + 3] == bytes(3)
            assert is_black == stays(
                -2.4 + (x + 0.5) * 3.6 / width, (height / 2 - y - 0.5) * 3.6 / width
            )


def stays(x: float, y: float) -> bool:
    """Return whether a point is still bounded after 120 steps."""
    a = b = 0.0
    for _ in range(120):
        a, b = a * a - b * b + x, 2 * a * b + y
        if a * a + b * b > 64:
            return False
    return True


def pi(run: Run, path: Path) -> None:
    """Compute pi by Machin's formula."""
    places = 4000
    one: int = 10 ** (places + 10)

    def arctangent(n: int) -> int:
        term = total = one // n
        divisor = 1
        while term:
            term //= -n * n
            divisor += 2
            total += term // divisor
        return total

    digits = str((16 * arctangent(5) - 4 * arctangent(239)) // 10**10)
    assert run(PLACES=places) == f"3.{digits[1:]}"


def bsp(run: Run, path: Path) -> None:
    """Compute it in one process; where heat no longer flows, it falls evenly along the rod."""
    parts, cells, settled = 3, 3, 0.5
    rod, steps, change = [0.0] * parts * cells, 0, math.inf
    while change > settled:
        around = [100.0, *rod, 0.0]
        relaxed = [(left + right) / 2 for left, right in zip(around, around[2:], strict=False)]
        change = max(abs(a - b) for a, b in zip(rod, relaxed, strict=True))
        rod, steps = relaxed, steps + 1
    value = run(PARTS=parts, CELLS=cells, SETTLED=settled)
    assert (value["steps"], flat(value["rod"])) == (steps, rod)
    even = [100 * (1 - (i + 1) / (len(rod) + 1)) for i in range(len(rod))]
    assert rod == pytest.approx(even, abs=10)


def mapreduce(run: Run, path: Path) -> None:
    counts: Counter[str] = Counter()
    for source in library():
        for line in source.read_text(errors="replace").split("\n"):
            words = line.strip(" \t").split()
            if words[:1] == ["import"] or (words[:1] == ["from"] and "import" in words[2:]):
                counts.update(re.findall(r"^[a-zA-Z_]\w*", "".join(words[1:2])))
    most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    assert list(run().items()) == most[:10]


def nbody(run: Run, path: Path) -> None:
    """Sum forces directly, which equals a tree without approximation exactly, and other trees
    nearly.
    """
    random, places, speeds = 1, [], []
    for _ in range(40):
        place = []
        for _ in range(2):
            random = random * 16807 % 2147483647
            place.append(random / 2147483647)
        places.append(place)
        speeds.append([0.0, 0.0])
    start = flat(places)
    for _ in range(3):
        for speed, place in zip(speeds, places, strict=True):
            for number, other in enumerate(places):
                strength = 1 / (1 + number % 3) / (math.dist(place, other) ** 2 + 0.01) ** 1.5
                for axis in range(2):
                    speed[axis] += 0.01 * strength * (other[axis] - place[axis])
        for speed, place in zip(speeds, places, strict=True):
            for axis in range(2):
                place[axis] += 0.01 * speed[axis]
    exact = flat(places)
    assert flat(run(BODIES=40, STEPS=3, BLUR=0)) == pytest.approx(exact, rel=1e-9)
    blurred = flat(run(BODIES=40, STEPS=3, BLUR=0.5))
    assert math.dist(blurred, exact) < 0.05 * math.dist(start, exact)
    assert blurred != pytest.approx(exact, rel=1e-9)


CHECKS = [
    fib, wordcount, grep, kmeans, binomial, smithwaterman, timespin, mandelbrot, pi, bsp, mapreduce,
    nbody,
]  # fmt: skip

KILLED = [
    (number, check)
    for place, check in enumerate(CHECKS)
    for number in range(WORKERS)
    if IS_LONG or number == place % WORKERS
]


def test_this_file_checks_every_script() -> None:
    found = {path.stem for path in EXAMPLES.glob("*/*.sw") if path.parent.name != "packages"}
    assert found == {run.__name__ for run in CHECKS}


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Home]]:
    """Start a cluster of two workers for each store, in its own home."""
    with ExitStack() as undo:
        homes = []
        for store in STORES:
            home = Home(tmp_path_factory.mktemp(store.partition(":")[0]))
            spec = store.format(pid=os.getpid())
            undo.callback(HandCluster.start(home, 2, "--store", spec).stop)
            homes.append(home)
        yield homes


@pytest.mark.requirement("CIB-50", "CIB-54")
@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_an_example_gives_the_expected_value_and_the_same_bytes_in_every_store(
    homes: list[Home], tmp_path: Path, check: Callable[[Run, Path], None]
) -> None:
    def run(**given: object) -> Any:
        found = set()
        for home in homes:
            done = home.run(*command(check.__name__, given))
            assert done.returncode == 0, done.stderr
            made = Path(str(given["OUT"])).read_bytes() if "OUT" in given else b""
            found.add((done.stdout, made))
        ((text, _),) = found
        return json.loads(text)

    check(run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number, check", KILLED)
def test_an_example_gives_the_same_value_when_a_worker_is_killed(
    lab: Lab, tmp_path: Path, number: int, check: Callable[[Run, Path], None]
) -> None:
    check(partial(lab.run_and_kill, number, check.__name__), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS if IS_LONG else CHECKS[:1])
def test_an_example_gives_the_same_value_on_its_own_temporary_cluster(
    home: Home, tmp_path: Path, check: Callable[[Run, Path], None]
) -> None:
    def run(**given: object) -> Any:
        done = home.run(*command(check.__name__, given))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    check(run, tmp_path)
    home.expect_nothing_left()


def test_an_example_needs_no_cluster_and_no_options(home: Home) -> None:
    done = home.run("sw-job", "--quiet", str(EXAMPLES / "kmeans" / "kmeans.sw"))
    assert json.loads(done.stdout)["sizes"] == [50, 62, 38], done.stderr
    home.expect_nothing_left()
