"""Tests of the work directory of a worker."""

from pathlib import Path

import pytest

from ciel.cli.daemons.spool import Spool
from ciel.storage.errors import StoreSpecError


def test_a_worker_that_is_refused_a_directory_leaves_it_as_it_is(tmp_path: Path) -> None:
    first, second = Spool(str(tmp_path / "spool")), Spool(str(tmp_path / "spool"))
    first.open()
    (first.path / "object").write_bytes(b"content")
    with pytest.raises(StoreSpecError, match="spool"):
        second.open()
    assert second.remove()
    assert (first.path / "object").read_bytes() == b"content"
    first.close()
    second.open()
    second.close()
    assert second.remove()
    assert not first.path.exists()


def test_the_files_of_failed_tasks_stay(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"))
    spool.open()
    spool.kept.mkdir()
    (spool.kept / "t.1").write_bytes(b"error")
    spool.store.mkdir()
    spool.close()
    assert not spool.remove()
    assert [path.name for path in spool.path.iterdir()] == [spool.kept.name]


def test_a_temporary_directory_that_was_never_opened_is_removed() -> None:
    spool = Spool(None)
    assert spool.path.is_dir()
    assert spool.remove()
    assert not spool.path.exists()
