"""Programs and clients read and write objects in place in an image, as clients of their own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.scc import attachments
from ciel.scc.attachments import NoPlaceError
from ciel.scc.builds import BUILDS
from ciel.scc.shapes import ShmfsError
from ciel.scc.store import SccStore, open_cores
from ciel.storage.errors import CorruptObjectError, ObjectConflictError, StorageError
from ciel.storage.interface import ObjectWriter

SIZE = 3 << 20
OPTIONS = {"capacity": "16MiB", "cores": "2"}


@pytest.fixture(params=BUILDS)
def store(request: pytest.FixtureRequest) -> Iterator[SccStore]:
    instance = f"places-{secrets.token_hex(4)}"
    with open_cores({**OPTIONS, "build": request.param, "instance": instance}) as store:
        yield store
    assert not Path("/dev/shm", f"ciel-scc-{instance}").exists()


def content(seed: int = 1) -> bytes:
    return bytes([seed]) * (SIZE - 1) + b"!"


def written(writer: ObjectWriter, seed: int = 1) -> None:
    """Do what a program does with a draft."""
    with attachments.open_draft(writer.mapped_path or "") as file:
        file.reserve(SIZE)
        if file.build == "strict":
            file.write(content(seed), 0)
        else:
            file.mapped(SIZE, writable=True)[:] = content(seed)
            file.set_written(SIZE)
        file.commit()


def put(store: SccStore, name: str, seed: int = 1) -> None:
    with store.begin(name) as writer:
        written(writer, seed)
        assert writer.size_bytes == SIZE
        assert writer.commit().size_bytes == SIZE


@pytest.mark.requirement("CIB-23")
def test_a_draft_becomes_an_object_without_a_copy(store: SccStore) -> None:
    put(store, "one")
    assert store.get("one") == content()
    assert [*store] == ["one"]
    assert store.check() == []
    with store.open("one") as reader:
        assert reader.mapped_path == reader.place
        with attachments.open_file(reader.place or "") as file:
            view = attachments.content_of(file)
            private = attachments.private_part(file, 5, SIZE - 5)
        assert view.readonly
        assert view == content()
        private[:4] = b"9999"
        assert bytes(private) == b"9999!"
        whole = attachments.open_private(reader.place or "")
    whole[0] = 7
    store.delete("one")
    put(store, "two", 2)
    assert (view[0], whole[0], whole[1], private[4]) == (1, 7, 1, ord("!"))
    assert store.copies.copied_bytes == 0


def test_space_is_free_once_nothing_maps_it(store: SccStore) -> None:
    free_bytes = store.free_bytes()
    with (
        store.begin("one", size_hint_bytes=SIZE) as writer,
        attachments.open_draft(writer.mapped_path or "") as file,
    ):
        file.reserve(2 * SIZE)
        memory: Any = bytearray(1)
        if file.build != "strict":
            memory = file.mapped(SIZE, writable=True)
        writer.account()
        assert store.usage().reserved_bytes == 2 * SIZE
    assert store.free_bytes() == free_bytes - (0 if file.build == "strict" else 2 * SIZE)
    memory[0] = 1
    del memory
    assert store.free_bytes() == free_bytes


def test_a_draft_must_be_committed_by_the_program(store: SccStore) -> None:
    free_bytes = store.free_bytes()
    with store.begin("one") as writer:
        with attachments.open_draft(writer.mapped_path or "") as file:
            file.write(content(), 0)
        with pytest.raises(CorruptObjectError, match="has not completed the file"):
            writer.commit()
    assert store.stat("one") is None
    assert store.free_bytes() == free_bytes


def test_the_first_commit_of_an_object_wins(store: SccStore) -> None:
    put(store, "one")
    put(store, "one")
    with store.begin("one") as writer:
        written(writer, 2)
        with pytest.raises(ObjectConflictError):
            writer.commit()
    assert store.get("one") == content()
    assert [*store] == ["one"]


def test_a_checksum_is_compared(store: SccStore) -> None:
    with store.begin("one") as writer:
        written(writer)
        with pytest.raises(CorruptObjectError, match="expected 123"):
            writer.commit(checksum="123")


def test_small_objects_are_files(store: SccStore) -> None:
    store.put("small", b"abc")
    with store.open("small") as reader, store.begin("next", size_hint_bytes=100) as writer:
        assert reader.place is None
        assert str(reader.mapped_path).startswith("/proc/")
        assert str(writer.mapped_path).startswith("/dev/shm/")


def test_a_place_may_be_full(store: SccStore) -> None:
    with store.begin("one") as writer, attachments.open_draft(writer.mapped_path or "") as file:
        with pytest.raises(ShmfsError) as caught:
            file.reserve(17 << 20)
        assert caught.value.reason == "NO_BLOCKS"


@pytest.mark.parametrize(
    "place",
    [
        "image:coherent:boot:1:2:../passwd/x", "image:none:boot:1:2:one/x", "image:coherent:one/x",
        "image:coherent:boot:1:2:one/../x", "/etc/passwd", "image:coherent:boot:1:2:nothing/x",
    ],
)  # fmt: skip
def test_only_places_of_images_are_opened(place: str) -> None:
    with pytest.raises(NoPlaceError):
        attachments.open_file(place)


def test_places_of_other_hosts_and_users_are_refused(store: SccStore) -> None:
    put(store, "one")
    with store.open("one") as reader:
        place = reader.place or ""
    kind, build, boot, *rest = place.split(":")
    with pytest.raises(NoPlaceError, match="not on this host"):
        attachments.open_file(":".join((kind, build, boot[::-1], *rest)))
    control = Path("/dev/shm", f"ciel-scc-{store.instance}", "control")
    if os.geteuid() == 0:
        os.chown(control, 1, -1)
        with pytest.raises(NoPlaceError, match="another user"):
            attachments.open_file(place)
    store.delete("one")
    os.chown(control, os.geteuid(), -1)
    with pytest.raises(StorageError):
        attachments.open_file(place)


WRITER = """
import os, sys, time
from ciel.scc import attachments
file = attachments.open_draft(sys.argv[1])
file.reserve(8 << 20)
print("ready", flush=True)
time.sleep(60)
"""


def test_the_space_of_a_killed_program_is_free_at_once(store: SccStore) -> None:
    free_bytes = store.free_bytes()
    with store.begin("one") as writer:
        command = [sys.executable, "-c", WRITER, writer.mapped_path or ""]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            program.send_signal(signal.SIGKILL)
    assert store.free_bytes() == free_bytes
