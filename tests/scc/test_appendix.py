"""The scripts of the dissertation's appendices, as printed, with our tools.

Small here, so that they take a second or two; `make appendix` runs them at their own size.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ciel.scc.shmfs import Image
from ciel.testing.shm_tools import TOOL_DIRECTORY, TOOLS, fresh_image
from ciel_tests.clusters.mounts import on_mount

BLOCKS, BLOCK = (1024, 1 << 20) if os.environ.get("CIEL_APPENDIX") == "full" else (16, 65536)
SCRIPTS = Path(__file__).with_name("appendix")
IS_FULL = os.environ.get("CIEL_APPENDIX") == "full"
TIMEOUT_S = 1800
TMPFS = ["-t", "tmpfs", "none"]

pytestmark = pytest.mark.timeout(TIMEOUT_S if IS_FULL else 60)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """Return a directory with the tools in it, as the scripts want them."""
    for tool in TOOLS:
        (tmp_path / tool).symlink_to(TOOL_DIRECTORY / tool)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def run(workplace: Path, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the workplace with a private /dev/shm; fail if the command fails."""
    environ = {
        **os.environ,
        **variables,
        "PATH": f"{workplace}:{os.environ['PATH']}",
        "TMPDIR": str(workplace / "tmp"),
    }
    environ.pop("SHMFS_NAME", None)
    ended = subprocess.run(
        on_mount(TMPFS, Path("/dev/shm"), [str(word) for word in words]),
        cwd=workplace,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


@pytest.mark.requirement("CIB-25")
def test_the_four_tests_of_appendix_a_print_ok(workplace: Path) -> None:
    text = (SCRIPTS / "run-fs-tests.sh").read_text()
    shape = {}
    if not IS_FULL:
        text = text.replace("NBLOCKS=1024", f"NBLOCKS={BLOCKS}").replace("1024*1024", f"{BLOCK}")
        shape = {"SHMFS_BLOCKS": f"{BLOCKS}", "SHMFS_BLOCK_SIZE": f"{BLOCK}"}
    (workplace / "run-fs-tests.sh").write_text(text)
    ended = run(workplace, "bash", "run-fs-tests.sh", **shape)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        "Running shmfs unit tests",
        *(
            f"-- Test {name} -- OK"
            for name in ("test_random_sizes", "test_linking", "test_seq_fill", "test_big_fill")
        ),
    ]
    assert os.listdir(workplace / "tmp") == []


@pytest.mark.requirement("CIB-25", "CIB-41")
def test_the_benchmark_of_appendices_b_and_c_loads_every_file(workplace: Path) -> None:
    workers, size = ("8", "67108864") if IS_FULL else ("3", "100000")
    if not IS_FULL:  # the caches of the whole machine are left alone
        (workplace / "drop_caches").unlink()
        (workplace / "drop_caches").symlink_to("/bin/true")
    run(workplace, "bash", SCRIPTS / "make-io-tests.sh", size, workers, "files")
    script = f"bash {SCRIPTS / 'run-io-benchmark.sh'} files {workers} 1 1 && shmlist"
    shape = {} if IS_FULL else {"SHMFS_BLOCKS": "32"}
    ended = run(workplace, "bash", "-c", script, **shape)
    names = [line.split()[-1] for line in ended.stdout.splitlines() if "committed" in line]
    assert sorted(names) == [f"file-{n}" for n in range(1, int(workers) + 1)]
    results = list((workplace / "results").glob("files-mw1-*/x*_run-0"))
    assert len(results) == int(workers)
    assert all("shmls:" not in result.read_text() for result in results)


# --- the same four from Python --------------------------------------------------------------------


@pytest.fixture
def image() -> Iterator[Image]:
    with fresh_image(f"--blocks={BLOCKS}", f"--block-size={BLOCK}") as made:
        with Image.open(made.control, made.data) as image:
            yield image
        made.assert_clean()


def keep(image: Image, name: str, content: bytes) -> None:
    with image.create(name, size_hint_bytes=len(content)) as file:
        file.write(content, 0)
        file.commit()


def is_kept(image: Image, name: str, content: bytes) -> bool:
    with image.open_file(name) as file:
        return file.view() == content


def test_random_sizes_from_python(image: Image) -> None:
    chance = random.Random(24)
    contents = [chance.randbytes(chance.randrange(1, 4 * BLOCK - 1)) for _ in range(BLOCKS // 4)]
    for n, content in enumerate(contents):
        keep(image, f"test-{n}", content)
    assert all(is_kept(image, f"test-{n}", content) for n, content in enumerate(contents))


def test_linking_from_python(image: Image) -> None:
    content = os.urandom(1024)
    keep(image, "original", content)
    image.link("original", "alias1")
    image.link("original", "alias2")
    image.link("alias1", "alias3")
    assert all(is_kept(image, f"alias{n}", content) for n in (1, 2, 3))


def test_a_file_for_every_block_from_python(image: Image) -> None:
    content = os.urandom(BLOCK + BLOCKS)
    for n in range(BLOCKS):
        keep(image, f"test-{n}", content[n : n + BLOCK - 1])
    assert all(is_kept(image, f"test-{n}", content[n : n + BLOCK - 1]) for n in range(BLOCKS))
    assert image.statistics()["free_block_count"] == 0


def test_a_file_of_all_blocks_from_python(image: Image) -> None:
    content = os.urandom(BLOCK) * BLOCKS
    keep(image, "bigtest", content[:-1])
    assert is_kept(image, "bigtest", content[:-1])
