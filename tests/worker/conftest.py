"""Fixtures for workers: a real store, workers with real programs, and state machines alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.executors.proc import ProcExecutor
from ciel.executors.stdinout import StdinoutExecutor
from ciel.executors.sync import SyncExecutor
from ciel.storage.files import FileStore, open_disk
from ciel.testing.homes import descriptors_of, wait_for
from ciel_tests.scenes.one_worker import Talker
from ciel_tests.scenes.worker import Played

EXECUTORS = {
    executor.name: executor for executor in (ProcExecutor(), StdinoutExecutor(), SyncExecutor())
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with open_disk({}, tmp_path / "store") as store:
        yield store


@pytest.fixture(scope="session")
def puppet_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("puppet") / "puppet"
    source = Path(__file__).parent / "programs" / "puppet.c"
    subprocess.run(["cc", "-O1", "-o", path, source], check=True)
    return str(path)


@pytest.fixture
def start(
    in_reactor: Any, store: FileStore, tmp_path: Path, puppet_path: str
) -> Iterator[Callable[..., Talker]]:
    """Start workers. At the end all their slots must be free, and no descriptor may be open."""
    started: list[Talker] = []

    def start(**options: Any) -> Talker:
        worker = Talker(in_reactor, store, tmp_path, EXECUTORS, **options)
        worker.puppet_path = puppet_path
        started.append(worker)
        return worker

    before = descriptors_of(os.getpid())
    yield start
    for worker in started:
        try:
            worker.wait_until_free()
        finally:
            worker.stop()
    wait_for(lambda: descriptors_of(os.getpid()) <= before, "closed descriptors")


@pytest.fixture
def worker(start: Callable[..., Talker]) -> Talker:
    return start()


@pytest.fixture
def played() -> Iterator[Played]:
    """A worker's machine with one slot; at the end no order or report may be left unchecked."""
    played = Played()
    yield played
    played.comes()


@pytest.fixture
def two() -> Iterator[Played]:
    """A worker's machine with two slots."""
    played = Played(slots=2)
    yield played
    played.comes()
