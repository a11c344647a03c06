"""Tests programs of the executor `proc` on real clusters: in C, Python and Perl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ciel.client import Client
from ciel.client.errors import TaskFailedError
from ciel.core.refs import Reference
from ciel.core.tasks import Needs
from ciel.testing.homes import HandCluster, Home
from ciel_tests.installed.languages import require_jansson, require_perl

SDK = Path(__file__).parents[3] / "executors" / "sdk"
PROGRAMS = Path(__file__).parents[1] / "programs"
SIZE_BYTES = 64 << 20


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with all programs; the C ones are compiled, `.socket` with passing of
    descriptors.
    """
    require_jansson()
    directory = tmp_path_factory.mktemp("programs")
    for source in (*PROGRAMS.glob("*.py"), *PROGRAMS.glob("*.pl")):
        (directory / source.name).symlink_to(source)

    def compile_(target: str, *arguments: str) -> str:
        path = str(directory / target)
        command = ["cc", "-Wall", "-Wextra", "-Werror", f"-I{SDK}/c", "-o", path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return path

    for kind, flags in (("c", []), ("socket", ["-DCIEL_SOCKET"])):
        library = compile_(f"{kind}.o", "-c", *flags, str(SDK / "c" / "ciel.c"))
        for source in PROGRAMS.glob("*.c"):
            compile_(f"{source.stem}.{kind}", "-O2", str(source), library, "-ljansson")
    return directory


@contextmanager
def cluster_of(path: Path, workers: int, slots: int) -> Iterator[Client]:
    home = Home(path)
    home.environ["PYTHONPATH"] = str(SDK)
    cluster = HandCluster.start(home, 0)
    try:
        for _ in range(workers):
            cluster.start_worker("--slots", str(slots))
        with Client(environ=home.environ) as client:
            yield client
    finally:
        cluster.stop()
        assert not home.processes()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Connect a client to a cluster of two workers with a slot each."""
    with cluster_of(tmp_path_factory.mktemp("two"), 2, 1) as client:
        yield client


@pytest.fixture(scope="module")
def client_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Connect a client to a cluster of one worker with two slots."""
    with cluster_of(tmp_path_factory.mktemp("one"), 1, 2) as client:
        yield client


def add(job: Any, program: Path, *pargs: Any, n_outputs: int = 1) -> list[Reference]:
    arguments = {"command": str(program), "proc_pargs": list(pargs), "proc_kwargs": {}}
    refs: list[Reference] = job.add("proc", arguments, n_outputs=n_outputs)
    return refs


@pytest.mark.requirement("CIB-2", "CIB-5")
@pytest.mark.parametrize("language", ["c", "socket", "py", "pl"])
def test_a_task_is_suspended_for_a_child_and_delegates(
    client: Client, programs: Path, language: str
) -> None:
    """Tasks are nested four deep on two slots: a suspended task holds no slot."""
    if language == "pl":
        require_perl()
    with client.job(f"nested {language}") as job:
        (ref,) = add(job, programs / f"nested.{language}", "nested", 4)
        assert job.read(ref) == b"5"


@pytest.mark.slow
def test_a_task_continues_with_the_first_of_its_children(
    client_of_one: Client, programs: Path
) -> None:
    """The second child is stopped then; otherwise only one slot would be free."""
    with client_of_one.job("choice") as job:
        (ref,) = add(job, programs / "choice.py", "spawns")
        assert job.read(ref) == b"2 of 2: brief\n"
        wide = {"args": {"command_line": ["echo", "free"]}}
        (ref,) = job.add("stdinout", wide, needs=Needs(slots=2))
        assert job.read(ref) == b"free\n"


MODES = {  # may_stream, may_pipe, how it is opened: see streams.c
    "sync": (False, False, None),
    "indirect, single fetch": (False, False, [False, False]),
    "indirect": (True, False, [False, False]),
    "indirect, pipe to the reader": (True, False, [False, True]),
    "indirect, sole consumer": (True, False, [True, False]),
    "direct": (True, True, [True, False]),
}


def stream(client: Client, program: Path, mode: str, tmp_path: Path) -> list[str]:
    """Read an object while it is written; return the number of bytes read, and the workers that
    read and wrote.

    The producer continues only when the consumer has read some bytes; each of them fills a slot.
    """
    may_stream, may_pipe, how = MODES[mode]
    read_it = str(tmp_path / "read")
    marks = [None, read_it]
    with client.job(f"{mode} {program.name}") as job:
        numbers, where = add(job, program, "produce", 7, may_stream, may_pipe, marks, n_outputs=2)
        (read,) = add(job, program, "consume", [numbers], how, [read_it, None])
        job.want([where])
        return [*job.read(read).decode().split(), job.read(where).decode()]


@pytest.mark.parametrize("language", ["c", "py"])
@pytest.mark.parametrize("mode", [name for name, flags in MODES.items() if flags[0]])
def test_a_stream_is_read_on_another_worker_while_it_is_written(
    client: Client, programs: Path, tmp_path: Path, language: str, mode: str
) -> None:
    size, reader, writer = stream(client, programs / f"streams.{language}", mode, tmp_path)
    assert int(size) == SIZE_BYTES
    assert reader != writer


@pytest.mark.parametrize("language", ["socket", "py"])
@pytest.mark.parametrize("mode", [name for name, flags in MODES.items() if flags[0]])
def test_a_stream_is_read_on_its_worker_while_it_is_written(
    client_of_one: Client, programs: Path, tmp_path: Path, language: str, mode: str
) -> None:
    size, reader, writer = stream(client_of_one, programs / f"streams.{language}", mode, tmp_path)
    assert int(size) == SIZE_BYTES
    assert reader == writer


@pytest.mark.parametrize("language", ["c", "py"])
@pytest.mark.parametrize("mode", [name for name, flags in MODES.items() if not flags[0]])
def test_objects_of_two_workers_are_read_completely(
    client: Client, programs: Path, tmp_path: Path, language: str, mode: str
) -> None:
    """Two producers wait for each other, so they run on two workers and one object has to be
    fetched.
    """
    _, _, how = MODES[mode]
    program, marks = programs / f"streams.{language}", [str(tmp_path / "a"), str(tmp_path / "b")]
    with client.job(f"{mode} {language}") as job:
        made = [
            add(job, program, "produce", 1, False, False, pair, n_outputs=2)
            for pair in (marks, marks[::-1])
        ]
        refs = [numbers for numbers, _ in made]
        (read,) = add(job, program, "consume", refs, how, [None, None])
        job.want([where for _, where in made])
        size, _ = job.read(read).decode().split()
        assert int(size) == 2 * SIZE_BYTES
        assert len({job.read(where) for _, where in made}) == 2


def test_a_program_is_reused_for_tasks_of_its_kind(client: Client, programs: Path) -> None:
    """Ten tasks run in sequence, since each reads the output of the previous one."""
    with client.job("warm") as job:
        (last,) = add(job, programs / "warm.py")
        for _ in range(9):
            (last,) = add(job, programs / "warm.py", last)
        seen = job.read(last).decode().split()
    assert len(seen) == 10
    assert len(set(seen)) <= 2  # one on each worker


def test_an_exception_is_reported_with_its_traceback(client: Client, programs: Path) -> None:
    with client.job("failing") as job:
        (ref,) = add(job, programs / "warm.py", "no reference")
        with pytest.raises(TaskFailedError) as failed:
            job.read(ref)
    assert "Traceback (most recent call last):" in str(failed.value)
    assert "AttributeError: 'str' object has no attribute 'array'" in str(failed.value)
