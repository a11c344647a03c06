"""Paths that are FIFOs, with readers that are programs, and behave as they do."""

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from ciel.scc.fifos import Fifos
from ciel.scc.shapes import Geometry
from ciel.scc.shmfs import Image
from ciel.storage.errors import StoreClosedError
from ciel.testing.store_rules import pattern

CONTENT = pattern(3_000_000)
PATIENCE_S = 10.0


@pytest.fixture
def fifos(tmp_path: Path) -> Iterator[Fifos]:
    with Fifos(tmp_path) as fifos:
        yield fifos
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("CIB-23")
def test_a_program_reads_what_is_given(fifos: Fifos, tmp_path: Path) -> None:
    served = fifos.serve(memoryview(CONTENT))
    assert subprocess.check_output(["cat", served.path]) == CONTENT
    assert served.result.result(PATIENCE_S) == len(CONTENT)
    assert list(tmp_path.iterdir()) == []


def test_what_is_empty_ends_at_once(fifos: Fifos) -> None:
    served = fifos.serve(memoryview(b""))
    assert subprocess.check_output(["cat", served.path]) == b""
    assert served.result.result(PATIENCE_S) == 0


@pytest.mark.requirement("CIB-23")
def test_a_reader_that_leaves_early_ends_the_service(fifos: Fifos) -> None:
    served = fifos.serve(memoryview(CONTENT))
    assert subprocess.check_output(["head", "-c", "10", served.path]) == CONTENT[:10]
    assert 10 <= served.result.result(PATIENCE_S) < len(CONTENT)


def test_a_reader_that_is_killed_harms_nobody(fifos: Fifos) -> None:
    served = fifos.serve(memoryview(CONTENT))
    other = fifos.serve(memoryview(CONTENT))
    with subprocess.Popen(["sh", "-c", 'exec sleep 100 <"$0"', served.path]) as reader:
        while served.passed_bytes == 0:
            assert reader.poll() is None
        reader.kill()
    assert served.result.result(PATIENCE_S) < len(CONTENT)
    assert subprocess.check_output(["cat", other.path]) == CONTENT


def test_a_reader_that_is_slow_keeps_nobody_waiting(fifos: Fifos) -> None:
    slow = fifos.serve(memoryview(CONTENT))
    with open(slow.path, "rb", buffering=0) as reader:
        first = reader.read(10)
        for _ in range(5):
            quick = fifos.serve(memoryview(CONTENT))
            assert subprocess.check_output(["cat", quick.path]) == CONTENT
        rest = b"".join(iter(lambda: reader.read(100_000), b""))
    assert first + rest == CONTENT


def test_nobody_opens_it_a_second_time(fifos: Fifos) -> None:
    served = fifos.serve(memoryview(CONTENT))
    with open(served.path, "rb", buffering=0) as reader:
        assert reader.read(1) == CONTENT[:1]
        with pytest.raises(FileNotFoundError):
            os.open(served.path, os.O_RDONLY)


def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    with Fifos(tmp_path) as fifos:
        served = fifos.serve(memoryview(CONTENT))
        unopened = fifos.serve(memoryview(CONTENT))
        fd = os.open(served.path, os.O_RDONLY)
        assert os.read(fd, 1)
    with open(fd, "rb") as reader:
        assert len(reader.read()) < len(CONTENT)
    for one in (served, unopened):
        with pytest.raises(StoreClosedError):
            one.result.result(PATIENCE_S)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("CIB-23")
def test_the_content_is_let_go_of_when_the_service_ends(tmp_path: Path) -> None:
    control, data, fifos_path = tmp_path / "control", tmp_path / "data", tmp_path / "fifos"
    fifos_path.mkdir()
    with Image.open(control, data, Geometry(block_bytes=65536)) as image:
        with image.create("a") as file:
            file.write(CONTENT, 0)
            file.commit()
        with Fifos(fifos_path) as fifos:
            given = [fifos.serve(image.open_file("a").view()) for _ in range(3)]
            info = image.stat("a")
            assert info is not None
            assert info.handle_count == 1  # all of them read by one
            assert subprocess.check_output(["cat", given[0].path]) == CONTENT
            subprocess.run(["head", "-c", "1", given[1].path], check=True, capture_output=True)
            fifos.end(given[2])
            wait([served.result for served in given], PATIENCE_S)
            info = image.stat("a")
            assert info is not None
            assert info.handle_count == 0


def test_any_number_of_readers_that_end_anyhow_leave_the_thread_and_the_memory_free(
    fifos: Fifos,
) -> None:
    random = Random(1)
    given = [fifos.serve(memoryview(CONTENT)) for _ in range(60)]

    def read(path: str, size_bytes: int) -> None:
        with suppress(FileNotFoundError), open(path, "rb", buffering=0) as reader:
            while size_bytes > 0 and (piece := reader.read(min(size_bytes, 65536))):
                size_bytes -= len(piece)

    sizes = [random.choice((0, 1, 70_000, 2 * len(CONTENT))) for _ in given]
    threads = [
        threading.Thread(target=read, args=(served.path, size))
        for served, size in zip(given, sizes, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for served, size in zip(given, sizes, strict=True):
        passed = served.result.result(PATIENCE_S)
        assert min(size, len(CONTENT)) <= passed <= len(CONTENT)
    last = fifos.serve(memoryview(CONTENT))
    assert subprocess.check_output(["cat", last.path]) == CONTENT
    assert not any(os.path.exists(served.path) for served in given)
