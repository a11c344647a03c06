"""The plug-in of nbdkit, with NBD clients of Debian, over real page servers (NET-2)."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.memory import companion
from ciel.memory.companion import Companion
from ciel.memory.page_server import EXTENT_BYTES
from ciel.testing.homes import wait_for
from ciel_tests.clusters.memory import Nodes, OwnerOfVolume

HOME = Path(__file__).parents[2] / "ciel" / "memory"
EXTENTS = 8
SIZE = EXTENTS * EXTENT_BYTES


def needs(program: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"needs {program}")
    return path


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    needs("nbdkit")
    if not Path("/usr/include/nbdkit-plugin.h").exists():
        pytest.skip("needs nbdkit-plugin-dev")
    target = str(tmp_path_factory.mktemp("plugin") / "nbdkit-ciel-memory-plugin.so")
    names = ("nbdkit/ciel_memory.c", "page_client.c", "page_cache.c", "codecs.c", "checksum.c")
    sources = [HOME / name for name in names]
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", f"-I{HOME}"]
    subprocess.run(["cc", *flags, "-o", target, *map(str, sources)], check=True)
    return target


@pytest.fixture
def export(nodes: Nodes, plugin: str, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Export a volume by nbdkit; return its URI."""
    started: list[subprocess.Popen[bytes]] = []
    listening = companion.listen(str(tmp_path / "companion"))

    def export(name: str, timeout_s: int = 20) -> str:
        def accept() -> None:
            connected, _ = listening.accept()
            Companion(OwnerOfVolume(nodes, name), connected)

        threading.Thread(target=accept, daemon=True).start()
        volume = nodes.volumes.volumes[name]
        socket, ready = tmp_path / "nbd", tmp_path / "ready"
        started.append(subprocess.Popen([
            "nbdkit", "--foreground", "--exit-with-parent", "--pidfile", str(ready),
            "--unix", str(socket), plugin,
            f"companion={tmp_path}/companion", f"volume={volume.number}",
            f"extents={len(volume.extents)}", f"timeout={timeout_s}",
            f"compress={volume.compress}",
        ]))  # fmt: skip
        wait_for(ready.exists, "nbdkit, which writes this file when it listens")
        return f"nbd+unix:///?socket={socket}"

    yield export
    for each in started:
        each.terminate()
        each.wait(10)
    listening.close()


@pytest.fixture(params=["", "zstd"])
def uri(request: pytest.FixtureRequest, nodes: Nodes, export: Callable[..., str]) -> str:
    """A volume "v" with two replicas on three servers; its pages may be compressed."""
    for name in "abc":
        nodes.join(name, EXTENTS)
    nodes.create("v", EXTENTS, 2, compress=request.param)
    return export("v")


def nbdsh(uri: str, script: str) -> None:
    """Run a script of libnbd's shell, by the interpreter for which Debian packages it."""
    python = needs("/usr/bin/python3")
    if subprocess.run([python, "-c", "import nbd"], capture_output=True).returncode != 0:
        pytest.skip("needs python3-libnbd")
    run(python, "-m", "nbd", "-u", uri, "-c", script)


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.requirement("NET-2")
def test_any_client_sees_its_size_and_abilities(uri: str) -> None:
    needs("nbdinfo")
    told = run("nbdinfo", uri)
    assert f"export-size: {SIZE} " in told
    for ability in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
        assert f"{ability}: true" in told


@pytest.mark.requirement("NET-2")
def test_an_image_is_copied_there_and_back(uri: str, tmp_path: Path) -> None:
    needs("nbdcopy")
    needs("qemu-img")
    image, back = tmp_path / "image", tmp_path / "back"
    content = bytearray(SIZE)
    for start in range(0, SIZE, 3 * EXTENT_BYTES // 2):  # with holes
        content[start : start + 300_000] = os.urandom(300_000)
    image.write_bytes(content[:SIZE])
    run("nbdcopy", str(image), uri)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(image), uri)
    run("nbdcopy", uri, str(back))
    assert back.read_bytes() == image.read_bytes()


def test_requests_of_any_size_at_any_place(uri: str) -> None:
    """The library writes bytes that are not aligned, zeros and trims, and reads them again."""
    nbdsh(uri, """
import random
model = bytearray(h.get_size())
chance = random.Random(1)
for step in range(300):
    at = chance.randrange(len(model))
    size = min(chance.choice([1, 7, 512, 4096, 5000, 70000, 1 << 20]), len(model) - at)
    what = chance.random()
    if what < 0.5:
        content = chance.randbytes(size)
        h.pwrite(content, at)
        model[at:at + size] = content
    elif what < 0.7:
        h.zero(size, at)
        model[at:at + size] = bytes(size)
    elif what < 0.8:
        h.trim(size, at)
        model[at:at + size] = bytes(size)
    else:
        assert h.pread(size, at) == model[at:at + size]
h.flush()
assert h.pread(len(model), 0) == model
""")  # fmt: skip


def test_a_request_beyond_the_end_is_refused(uri: str) -> None:
    nbdsh(uri, """
h.set_strict_mode(0)
for act in (lambda: h.pread(4096, h.get_size()), lambda: h.pwrite(b"x" * 10, h.get_size() - 5)):
    try:
        act()
    except nbd.Error as error:
        assert error.errno in ("EINVAL", "ENOSPC"), error
    else:
        raise AssertionError
assert h.pread(1, 0) == b"\\0"
""")  # fmt: skip


@pytest.mark.slow
def test_verified_writes_survive_killed_servers(nodes: Nodes, uri: str) -> None:
    """fio verifies each block that it reads, while servers are killed."""
    needs("fio")
    is_over = threading.Event()

    def kill() -> None:
        for number in range(20):
            if is_over.wait(0.5):
                return
            nodes.kill(sorted(nodes.nodes)[0])
            nodes.join(f"n{number:02}", EXTENTS)
            wait_for(lambda: nodes.copies("v") == 2, "all copies", 20.0)

    killer = threading.Thread(target=kill)
    killer.start()
    begun_s = time.monotonic()
    try:
        run("fio", "--name=x", "--ioengine=nbd", f"--uri={uri}", "--rw=randrw", "--bs=4k",
            "--iodepth=8", f"--size={SIZE}", "--verify=crc32c", "--time_based", "--runtime=6",
            "--verify_backlog=256", "--verify_fatal=1", "--verify_state_save=0")  # fmt: skip
    finally:
        is_over.set()
        killer.join()
    assert time.monotonic() - begun_s > 5


def test_without_a_copy_a_request_fails_in_time(nodes: Nodes, export: Callable[..., str]) -> None:
    nodes.join("only", EXTENTS)
    nodes.create("v", EXTENTS, 1)
    uri = export("v", timeout_s=1)
    nodes.kill("only")
    nbdsh(uri, """
for _ in range(2):
    try:
        h.pread(4096, 0)
    except nbd.Error as error:
        assert error.errno == "EIO", error
    else:
        raise AssertionError
""")  # fmt: skip
