"""Programs of the executor `proc` on real clusters: in C, Python and Perl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.client import Client
from ciel.core.refs import Reference
from ciel.testing.homes import HandCluster, Home

SDK = Path(__file__).parents[2] / "executors" / "sdk"
PROGRAMS = Path(__file__).parent / "programs"
SIZE_BYTES = 64 << 20


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all programs, those in C compiled."""
    directory = tmp_path_factory.mktemp("programs")
    for source in (*PROGRAMS.glob("*.py"), *PROGRAMS.glob("*.pl")):
        (directory / source.name).symlink_to(source)
    for source in PROGRAMS.glob("*.c"):
        target = directory / source.name
        command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SDK}/c", "-o", str(target)]
        files = [str(source), str(SDK / "c" / "ciel.c"), "-ljansson"]
        done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
        if "jansson.h" in done.stderr:
            pytest.skip("jansson.h is missing (Debian: libjansson-dev): 'make deps' installs it")
        assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a cluster of two workers with a slot each."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.environ["PYTHONPATH"] = str(SDK)
    cluster = HandCluster.start(home)
    try:
        with Client(environ=home.environ) as client:
            yield client
    finally:
        cluster.stop()
        home.expect_nothing_left()


def add(job: Any, program: Path, *pargs: Any, n_outputs: int = 1) -> list[Reference]:
    arguments = {"command": str(program), "proc_pargs": list(pargs), "proc_kwargs": {}}
    refs: list[Reference] = job.add("proc", arguments, n_outputs=n_outputs)
    return refs


@pytest.mark.parametrize("language", ["c", "py", "pl"])
def test_a_task_waits_in_place_for_a_child_and_hands_over(
    client: Client, programs: Path, language: str
) -> None:
    """Four deep on two slots: who waits holds none."""
    with client.job(f"nested {language}") as job:
        (ref,) = add(job, programs / f"nested.{language}", "nested", 4)
        assert job.read(ref) == b"5"


MODES = {  # may_stream, may_pipe, how it is opened: see streams.c
    "sync": (False, False, None),
    "indirect, single fetch": (False, False, [False, False]),
    "indirect": (True, False, [False, False]),
    "indirect, pipe to the reader": (True, False, [False, True]),
    "indirect, sole consumer": (True, False, [True, False]),
    "direct": (True, True, [True, False]),
}


@pytest.mark.parametrize("language", ["c", "py"])
@pytest.mark.parametrize("mode", [name for name, flags in MODES.items() if flags[0]])
def test_a_stream_is_read_on_another_worker_while_it_is_written(
    client: Client, programs: Path, tmp_path: Path, language: str, mode: str
) -> None:
    """The producer does not go on before the consumer has read something; each fills a slot."""
    may_stream, may_pipe, how = MODES[mode]
    program, mark = programs / f"streams.{language}", str(tmp_path / "mark")
    with client.job(f"{mode} {language}") as job:
        numbers, where = add(job, program, "produce", 7, may_stream, may_pipe, mark, n_outputs=2)
        (read,) = add(job, program, "consume", [numbers], how, mark)
        job.want([where])
        size, worker = job.read(read).decode().split()
        assert int(size) == SIZE_BYTES
        assert worker != job.read(where).decode()


@pytest.mark.parametrize("language", ["c", "py"])
@pytest.mark.parametrize("mode", [name for name, flags in MODES.items() if not flags[0]])
def test_objects_of_two_workers_are_read_whole(
    client: Client, programs: Path, tmp_path: Path, language: str, mode: str
) -> None:
    """Two producers that run at once, so that one of the objects has to come from elsewhere."""
    _, _, how = MODES[mode]
    program = programs / f"streams.{language}"
    with client.job(f"{mode} {language}") as job:
        made = [add(job, program, "produce", n, False, False, None, n_outputs=2) for n in (1, 2)]
        (read,) = add(job, program, "consume", [numbers for numbers, _ in made], how, None)
        job.want([where for _, where in made])
        size, _ = job.read(read).decode().split()
        assert int(size) == 2 * SIZE_BYTES
        assert len({job.read(where) for _, where in made}) == 2
