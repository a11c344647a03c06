from __future__ import annotations

from pathlib import Path

import pytest

from ciel.state.bases.lmdb_tables import Tables
from ciel.state.errors import BaseUrlError
from ciel.state.finding import open_base
from ciel.state.opening import open_kv


def test_base_is_found_by_its_url(tmp_path: Path) -> None:
    with open_kv(f"lmdb:{tmp_path}/base", "scores") as kv:
        kv.put("a", 1)
    with open_base(f"lmdb:{tmp_path}/base?sync=off") as base:
        assert base.get(b"scores:a") == b"1"
    with open_kv("memory:") as kv:
        assert list(kv) == []


@pytest.mark.parametrize(
    "url, why",
    [
        ("", "is no URL"),
        ("/tmp/base", "is no URL"),
        ("none:x", "not installed"),
        ("lmdb:", "names no base"),
        ("lmdb:/tmp/x?sync=sometimes", "names no base"),
        ("lmdb:/proc/none", "no base can be opened at /proc/none"),
    ],
)
def test_bad_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(BaseUrlError, match=why):
        open_base(url)


def test_base_of_another_format_is_refused(tmp_path: Path) -> None:
    tables = Tables(tmp_path, is_synced=True)
    with tables.env.begin(write=True, db=tables.about) as txn:
        txn.put(b"format", b"9")
    tables.close()
    with pytest.raises(BaseUrlError, match="has format 9, and this version of ciel reads 1"):
        open_base(f"lmdb:{tmp_path}")
    (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(BaseUrlError, match="no base can be opened"):
        open_base(f"lmdb:{tmp_path}")


def test_base_is_open_in_a_process_with_one_sync(tmp_path: Path) -> None:
    with open_base(f"lmdb:{tmp_path}"):
        with pytest.raises(BaseUrlError, match="open in this process with another sync"):
            open_base(f"lmdb:{tmp_path}?sync=off")
        with open_base(f"lmdb:{tmp_path}"):
            pass
