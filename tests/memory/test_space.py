"""Address spaces over real page servers that die, join and leave (KVB-1, KVB-3, NET-3 to NET-5)."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any, cast

import pytest

from ciel.memory.companion import Owner
from ciel.memory.page_server import EXTENT_BYTES, EXTENT_PAGES, PAGE_BYTES
from ciel.memory.space import PACKAGES, Attributes, Space, SpaceError
from ciel.memory.volumes import CODECS
from ciel.testing.homes import wait_for
from ciel_tests.clusters.memory import Nodes, OwnerOfVolume


@pytest.fixture(params=[("", 0), ("lz4", 0), ("zstd", 0), ("", 10), ("zstd", 1000)])
def space(request: pytest.FixtureRequest, nodes: Nodes) -> Space:
    """The space of a volume "v" of three extents, on two servers; its pages may be compressed, and
    some of them cached.
    """
    nodes.join("a")
    nodes.join("b")
    codec, cached = request.param
    return nodes.create("v", 3, 2, compress=codec, cache_bytes=cached * PAGE_BYTES)


def mixed(pages: int) -> bytes:
    """Return pages of which some are zeros, some can be compressed and some cannot."""
    chance = random.Random(pages)
    kinds = (
        bytes(PAGE_BYTES), b"words of text " * 293, chance.randbytes(PAGE_BYTES),
        chance.randbytes(2500) + bytes(PAGE_BYTES - 2500), chance.randbytes(64) * 64,
    )  # fmt: skip
    return b"".join([chance.choice(kinds)[:PAGE_BYTES].ljust(PAGE_BYTES) for _ in range(pages)])


@pytest.mark.requirement("KVB-1")
def test_a_space_has_attributes(space: Space) -> None:
    assert space.attributes() == Attributes(3 * EXTENT_BYTES, PAGE_BYTES, 2)


@pytest.mark.requirement("NET-1", "KVB-1")
@pytest.mark.parametrize(
    "address, length",
    [
        (0, 0), (0, 1), (5, 10), (PAGE_BYTES - 1, 2), (4090, 3 * PAGE_BYTES),
        (PAGE_BYTES, PAGE_BYTES),
        (EXTENT_BYTES - 7, 14), (EXTENT_BYTES - 7, EXTENT_BYTES + 14), (0, 3 * EXTENT_BYTES),
        (3 * EXTENT_BYTES - 1, 1), (3 * EXTENT_BYTES, 0),
    ],
)  # fmt: skip
def test_bytes_at_any_address_are_written_and_read(space: Space, address: int, length: int) -> None:
    whole = bytearray(os.urandom(3 * EXTENT_BYTES))
    space.write(0, whole)
    content = os.urandom(length)
    space.write(address, content)
    whole[address : address + length] = content
    assert space.read(0, len(whole)) == whole
    assert space.read(address, length) == content
    space.trim(address, length)
    whole[address : address + length] = bytes(length)
    assert space.read(0, len(whole)) == whole


@pytest.mark.parametrize(
    "address, length", [(-1, 1), (0, -1), (3 * EXTENT_BYTES, 1), (0, 3 * EXTENT_BYTES + 1)]
)
def test_what_lies_outside_is_refused(space: Space, address: int, length: int) -> None:
    with pytest.raises(ValueError, match="not within the address space"):
        space.read(address, length)
    with pytest.raises(ValueError, match="not within the address space"):
        space.trim(address, length)


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("codec", CODECS[1:])
def test_compressed_pages_take_less_memory(nodes: Nodes, codec: str) -> None:
    nodes.join("a")
    space = nodes.create("v", 3, 1, compress=codec)
    content = mixed(3 * EXTENT_PAGES)
    space.write(0, content)
    assert space.read(0, len(content)) == content
    assert space.read(PAGE_BYTES - 5, 3 * PAGE_BYTES) == content[PAGE_BYTES - 5 :][: 3 * PAGE_BYTES]
    used_pages = nodes.nodes["a"].pages.figures().pages_used
    assert used_pages < 0.65 * 3 * EXTENT_PAGES
    reread = Space(OwnerOfVolume(nodes, "v"), 1, 3, 1)  # it does not know the codec
    with pytest.raises(SpaceError):
        reread.read(0, len(content))
    reread.close()


def test_a_codec_without_a_library_is_an_error_that_says_what_to_install(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, "brotli", "libbrotli1")
    owner = cast(Owner, None)
    with pytest.raises(SpaceError, match=r"library of brotli is not here \(Debian: libbrotli1\)"):
        Space(owner, 1, 3, 1, compress="brotli")


@pytest.mark.requirement("KVB-1")
def test_two_spaces_share_a_volume(nodes: Nodes) -> None:
    nodes.join("a")
    space, other = nodes.create("v", 3, 1), nodes.open("v")
    space.write(100, b"hello")
    assert other.read(100, 5) == b"hello"
    other.write(100, b"HELLO")
    assert space.read(100, 5) == b"HELLO"


def test_a_closed_space_says_so(space: Space) -> None:
    space.close()
    with pytest.raises(SpaceError, match="closed"):
        space.read(0, 1)


def test_nothing_is_lost_with_a_server(nodes: Nodes, space: Space) -> None:
    content = os.urandom(3 * EXTENT_BYTES)
    space.write(0, content)
    nodes.kill("a")
    assert space.read(0, len(content)) == content
    nodes.join("c")
    wait_for(lambda: nodes.copies("v") == 2, "the second copies")
    nodes.kill("b")
    assert space.read(0, len(content)) == content


@pytest.mark.requirement("NET-4")
def test_a_server_leaves_and_nobody_notices(nodes: Nodes, space: Space) -> None:
    content = os.urandom(3 * EXTENT_BYTES)
    space.write(0, content)
    nodes.join("c")
    nodes.drain("a")
    wait_for(lambda: "a" not in nodes.volumes.servers or not nodes.volumes.servers["a"].held, "it")
    nodes.kill("a")
    assert space.read(0, len(content)) == content
    wait_for(lambda: nodes.copies("v") == 2, "both copies")


@pytest.mark.requirement("NET-6", "KVB-1")
def test_without_a_copy_a_call_fails_in_time_and_names_the_server(nodes: Nodes) -> None:
    nodes.join("only")
    space = nodes.create("v", 1, 1, timeout_s=0.5)
    space.write(0, b"here")
    nodes.kill("only")
    begun_s = time.monotonic()
    with pytest.raises(SpaceError, match="memory server only is gone, which has its pages"):
        space.read(0, 4)
    with pytest.raises(SpaceError, match="only is gone"):
        space.write(0, b"there")
    assert time.monotonic() - begun_s > 0.9


def test_a_primary_that_renews_no_lease_is_replaced(nodes: Nodes, space: Space) -> None:
    """Its connections are open, and it has the pages; but it refuses requests."""
    space.write(0, b"before")
    first, _ = nodes.place("v", 0)
    nodes.nodes[first.address].is_frozen = True
    wait_for(lambda: nodes.place("v", 0)[0].epoch > first.epoch, "another decision")
    assert space.read(0, 6) == b"before"
    space.write(0, b"after!")
    assert space.read(0, 6) == b"after!"
    assert nodes.place("v", 0)[0].address != first.address


def test_calls_from_many_threads_go_on_while_servers_die(nodes: Nodes) -> None:
    """Each thread reads its last write; every copy is right at the end."""
    for name in "abc":
        nodes.join(name)
    space = nodes.create("v", 4, 2, timeout_s=10.0)
    is_over, problems = threading.Event(), []
    pages = 4 * EXTENT_BYTES // PAGE_BYTES
    expected: dict[int, bytes] = {}

    def work(number: int) -> None:
        chance = random.Random(number)
        try:
            while not is_over.is_set():
                page = chance.randrange(number, pages, 4)
                if chance.random() < 0.5:
                    content = chance.randbytes(16) * (PAGE_BYTES // 16)
                    space.write(page * PAGE_BYTES, content)
                    expected[page] = content
                elif space.read(page * PAGE_BYTES, PAGE_BYTES) != expected.get(
                    page, bytes(PAGE_BYTES)
                ):
                    problems.append(f"page {page} is stale")
        except SpaceError as error:
            problems.append(str(error))

    threads: list[Any] = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4):
        time.sleep(0.3)
        nodes.kill(sorted(nodes.nodes)[0])
        nodes.join(f"n{number}")
        wait_for(lambda: nodes.copies("v") == 2, "all copies", 10.0)
    is_over.set()
    for thread in threads:
        thread.join(20)
    assert problems == []
    assert len(expected) > 100
    for page, content in expected.items():
        assert space.read(page * PAGE_BYTES, PAGE_BYTES) == content
