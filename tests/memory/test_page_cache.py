"""The cache of pages of a space: it saves reads, and is never older than a write (NET-5, NET-6)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from ciel.memory.page_server import EXTENT_BYTES, EXTENT_PAGES, PAGE_BYTES
from ciel.memory.space import Space
from ciel_tests.clusters.memory import Nodes

CACHED = 64


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    nodes.join("a", 8)
    yield nodes
    nodes.close()


@pytest.fixture
def space(nodes: Nodes) -> Space:
    return nodes.create("v", 4, 1, cache_bytes=CACHED * PAGE_BYTES)


def pages_read(nodes: Nodes) -> int:
    return int(nodes.nodes["a"].pages.figures().pages_read)


def page(number: int) -> bytes:
    return number.to_bytes(8, "little") * (PAGE_BYTES // 8)


def fill(space: Space) -> None:
    """Write all pages, by writes that are too long for the cache."""
    for extent in range(4):
        numbers = range(extent * EXTENT_PAGES, (extent + 1) * EXTENT_PAGES)
        space.write(extent * EXTENT_BYTES, b"".join(map(page, numbers)))


def read(space: Space, number: int) -> bytes:
    return space.read(number * PAGE_BYTES, PAGE_BYTES)


def test_a_page_is_read_once(nodes: Nodes, space: Space) -> None:
    fill(space)
    for _ in range(3):
        assert [read(space, number) for number in (900, 7, 300)] == [*map(page, (900, 7, 300))]
    assert pages_read(nodes) == 3


def test_a_page_that_was_written_is_not_read(nodes: Nodes, space: Space) -> None:
    space.write(5 * PAGE_BYTES, page(1) + page(2))
    assert space.read(5 * PAGE_BYTES + 10, 20) == page(1)[10:30]
    assert read(space, 6) == page(2)
    assert pages_read(nodes) == 0
    space.trim(5 * PAGE_BYTES, PAGE_BYTES)
    assert read(space, 5) == bytes(PAGE_BYTES)


@pytest.mark.requirement("NET-5")
def test_the_pages_used_longest_ago_are_forgotten_first(nodes: Nodes, space: Space) -> None:
    fill(space)
    numbers = [*range(1000, 0, -15)][:CACHED]  # never sequential
    for number in numbers:
        read(space, number)
    read(space, numbers[0])
    before = pages_read(nodes)
    read(space, 1)
    assert read(space, numbers[0]) == page(numbers[0])
    assert pages_read(nodes) == before + 1
    assert read(space, numbers[1]) == page(numbers[1])
    assert pages_read(nodes) == before + 2


@pytest.mark.requirement("NET-6")
@pytest.mark.parametrize("pages", [1, 3])
def test_sequential_reads_read_ahead(nodes: Nodes, space: Space, pages: int) -> None:
    fill(space)
    requests = nodes.nodes["a"].pages.figures().requests
    for first in range(100, 100 + 60 * pages, pages):
        expected = b"".join(map(page, range(first, first + pages)))
        assert space.read(first * PAGE_BYTES, pages * PAGE_BYTES) == expected
    requests = nodes.nodes["a"].pages.figures().requests - requests
    assert requests <= 60 * pages // 32 + 3


def test_long_reads_displace_nothing(nodes: Nodes, space: Space) -> None:
    fill(space)
    read(space, 3)
    assert space.read(0, 2 * EXTENT_BYTES)[-PAGE_BYTES:] == page(2 * EXTENT_PAGES - 1)
    before = pages_read(nodes)
    read(space, 3)
    assert pages_read(nodes) == before


def test_the_last_pages_can_be_read_ahead(nodes: Nodes, space: Space) -> None:
    fill(space)
    last = 4 * EXTENT_PAGES
    assert [read(space, number) for number in range(last - 9, last)] == [
        page(number) for number in range(last - 9, last)
    ]


def test_threads_that_write_and_read_see_no_older_page(space: Space) -> None:
    """Each page has one writer, which reads it again at once; others have it cached meanwhile."""
    until_s, problems = time.monotonic() + 2.0, list[str]()

    def work(own: int) -> None:
        chance, written = random.Random(own), dict[int, int]()
        while time.monotonic() < until_s and not problems:
            number = chance.randrange(100) * 4 + own
            if chance.random() < 0.3:
                written[number] = chance.getrandbits(60)
                space.write(number * PAGE_BYTES, page(written[number]))
            elif chance.random() < 0.1 and number in written:
                del written[number]
                space.trim(number * PAGE_BYTES, PAGE_BYTES)
            if number in written and read(space, number) != page(written[number]):
                problems.append(f"page {number} is not what was written")
            read(space, chance.randrange(400))

    workers = [threading.Thread(target=work, args=(own,)) for own in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems
