"""Tests inputs that are read from URLs, and outputs that are written to URLs."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

import ciel.urls
from ciel import Client

pytestmark = pytest.mark.usefixtures("client")


def test_a_program_reads_the_content_of_a_url(client: Client, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("b\na\n")
    words = ciel.urls.read(f"file://{tmp_path}/words")
    assert client.run(["sort"], stdin=words).result(60) == b"a\nb\n"


def test_a_function_gets_the_content_of_a_url_as_bytes(client: Client, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4096
    (tmp_path / "content").write_bytes(content)
    assert client.submit(len, ciel.urls.read(f"file://{tmp_path}/content")).result(60) == 1 << 20


def test_the_result_of_a_task_is_written_to_a_url(client: Client, tmp_path: Path) -> None:
    made = client.submit(str.upper, "text")
    assert ciel.urls.write(made, f"file://{tmp_path}/text").result(60) == 4
    assert (tmp_path / "text").read_text() == "TEXT"


def test_storage_options_are_passed_to_fsspec(client: Client, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/packed"
    ciel.urls.write(b"content", url, compression="gzip").result(60)
    assert (tmp_path / "packed").read_bytes()[:2] == b"\x1f\x8b"
    assert ciel.urls.read(url, compression="gzip").result(60) == b"content"


def test_a_missing_url_raises_the_error_of_fsspec(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ciel.urls.read(f"file://{tmp_path}/none").result(60)


def test_every_protocol_of_fsspec_works() -> None:
    fsspec.filesystem("memory").pipe("/there", b"here")
    assert ciel.urls._read("memory://there", {}) == b"here"
    assert ciel.urls._write(memoryview(b"now"), "memory://there", {}) == 3
    assert fsspec.filesystem("memory").cat("/there") == b"now"
