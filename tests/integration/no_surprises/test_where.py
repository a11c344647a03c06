"""Tests where programs and Python calls run, and with which environment
(docs/where-programs-run.md).

The functions here are sent with their code: no program of a task can import this file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import ciel
from ciel.testing.homes import HandCluster, Home

cloudpickle.register_pickle_by_value(sys.modules[__name__])
WITHIN_S = 60
DATA = "a,b\n1,2\n"


@pytest.fixture
def shared(lasting_cluster: HandCluster) -> Home:
    """Return a home with a cluster of two workers that were started in another directory."""
    return lasting_cluster.home


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.LocalCluster]:
    directory = tmp_path_factory.mktemp("one")
    with ciel.LocalCluster(workers=1, slots=1, directory=directory) as cluster:
        yield cluster


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a working directory with a file; return it."""
    (tmp_path / "data.csv").write_text(DATA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(
    home: Home, directory: Path, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `ciel submit` in a directory, with additional variables."""
    command = [shutil.which("ciel", path=home.environ["PATH"]) or "ciel", "submit", *words]
    return subprocess.run(
        command, cwd=directory, env={**home.environ, **variables}, timeout=WITHIN_S,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


# --- Python ---------------------------------------------------------------------------------------


def read(name: str) -> str:
    return Path(name).read_text()


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return os.getcwd()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def disturb(number: int) -> tuple[str | None, str]:
    """Change state that the next call must not see; return the state that this call found."""
    found = os.environ.get("LEFT"), os.getcwd()
    os.environ["LEFT"] = str(number)
    os.environ.pop("KEPT", None)
    os.chdir("/")
    return found


def test_calls_run_in_the_directory_of_their_client(cluster: ciel.LocalCluster, here: Path) -> None:
    with ciel.Client(cluster) as client:
        assert client.submit(read, "data.csv").result(WITHIN_S) == DATA
        assert client.submit(write, "out.txt", "kept").result(WITHIN_S) == str(here)
    assert (here / "out.txt").read_text() == "kept"


def test_executors_pools_and_children_run_in_that_directory_too(
    cluster: ciel.LocalCluster, here: Path
) -> None:
    @ciel.task
    def parent(name: str) -> Any:
        return ciel.call(read, name)

    with ciel.Client(cluster) as client:
        assert client.submit(parent, "data.csv").result(WITHIN_S) == DATA
        with ciel.Executor(client=client) as executor:
            assert executor.submit(read, "data.csv").result(WITHIN_S) == DATA
        from ciel.multiprocessing import Pool

        with Pool(client=client) as pool:
            assert pool.apply(read, ("data.csv",)) == DATA
        graph = {"text": (read, "data.csv"), "length": (len, "text")}
        assert ciel.dask.get(graph, "length") == len(DATA)


def test_calls_see_the_variables_of_their_client_but_no_secrets(
    cluster: ciel.LocalCluster, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUIT", "pear")
    monkeypatch.setenv("FRUIT_TOKEN", "secret")
    with ciel.Client(cluster) as client:
        found = [client.submit(variable, name) for name in ("FRUIT", "FRUIT_TOKEN")]
        assert [each.result(WITHIN_S) for each in found] == ["pear", None]


def test_later_calls_see_changes_of_the_clients_directory_and_environment(
    cluster: ciel.LocalCluster, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLD", "1")
    with ciel.Client(cluster) as client:
        assert client.submit(variable, "OLD").result(WITHIN_S) == "1"
        monkeypatch.delenv("OLD")
        monkeypatch.setenv("NEW", "2")
        (here / "sub").mkdir()
        monkeypatch.chdir(here / "sub")
        found = [client.submit(variable, name) for name in ("OLD", "NEW")]
        assert [each.result(WITHIN_S) for each in found] == [None, "2"]
        assert client.submit(os.getcwd).result(WITHIN_S) == str(here / "sub")
        said = client.run(["sh", "-c", "pwd; echo $OLD-$NEW"]).result(WITHIN_S)
        assert said.decode().split() == [str(here / "sub"), "-2"]
        monkeypatch.chdir(here)
        assert client.submit(os.getcwd).result(WITHIN_S) == str(here)


@pytest.mark.parametrize("how", ["submit", "map"])
def test_a_call_does_not_see_changes_by_earlier_calls(
    cluster: ciel.LocalCluster, here: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("KEPT", "yes")
    with ciel.Client(cluster) as client:
        if how == "map":
            found = list(client.map(disturb, range(50)))
        else:
            found = [f.result(WITHIN_S) for f in [client.submit(disturb, n) for n in range(50)]]
        assert found == [(None, str(here))] * 50
        assert client.submit(variable, "KEPT").result(WITHIN_S) == "yes"


def test_clients_in_different_directories_do_not_disturb_each_other(
    cluster: ciel.LocalCluster, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "other").mkdir()
    with ciel.Client(cluster) as one, ciel.Client(cluster, cwd=here / "other") as two:
        for _ in range(3):
            assert one.submit(os.getcwd).result(WITHIN_S) == str(here)
            assert two.submit(os.getcwd).result(WITHIN_S) == str(here / "other")


def use_directory() -> tuple[str, list[str], str]:
    found = ciel.task_directory()
    Path(found, "file").write_text("x")
    return found, os.listdir(ciel.task_directory()), os.getcwd()


def test_each_task_may_have_a_private_directory(cluster: ciel.LocalCluster, here: Path) -> None:
    with ciel.Client(cluster) as client:
        for _ in range(2):
            directory, files, cwd = client.submit(use_directory).result(WITHIN_S)
            assert files == ["file"]
            assert cwd == str(here)
            assert not Path(directory).exists()
    with pytest.raises(RuntimeError, match="and this is not a task"):
        ciel.task_directory()


def test_a_client_can_choose_the_directory_and_environment_of_its_calls(
    cluster: ciel.LocalCluster, here: Path
) -> None:
    with ciel.Client(cluster, scratch=True, env={"ONLY": "this"}) as client:
        assert not client.submit(os.getcwd).result(WITHIN_S).startswith(str(here))
        assert client.submit(variable, "ONLY").result(WITHIN_S) == "this"
    with pytest.raises(ciel.client.ClientError, match="leave out one of the two"):
        ciel.Client(cluster, scratch=True, cwd=here)


def test_a_missing_directory_is_named_with_the_remedies(
    cluster: ciel.LocalCluster, here: Path
) -> None:
    gone = here / "gone"
    with ciel.Client(cluster, cwd=gone) as client:
        futures = [client.submit(os.getcwd), client.run(["pwd"])]
        for future in futures:
            with pytest.raises(ciel.TaskError) as caught:
                future.result(WITHIN_S)
            for part in (str(gone), "no such directory", "host ", "cwd=DIR", "scratch=True"):
                assert part in str(caught.value)


def test_programs_run_in_the_same_directory_as_calls(
    cluster: ciel.LocalCluster, here: Path
) -> None:
    with ciel.Client(cluster) as client:
        assert client.run(["cat", "data.csv"]).result(WITHIN_S).decode() == DATA
        outputs = client.run(["sh", "-c", "pwd > $(head -1 $OUTPUT_FILES)"], outputs=2)
        assert outputs[0].result(WITHIN_S).decode().strip() == str(here)
        assert client.run(["pwd"], cwd="/usr").result(WITHIN_S) == b"/usr\n"
        private = client.run(["ls"], files={"given": b"x"})
        assert private.result(WITHIN_S) == b"given\n"
        assert client.run(["ls"], scratch=True).result(WITHIN_S) == b""


# --- ciel submit ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_programs_run_in_the_directory_of_the_command(shared: Home, here: Path) -> None:
    done = submit(shared, here, "--", "sort", "-r", "data.csv")
    assert (done.returncode, done.stdout) == (0, "a,b\n1,2\n")
    script = "echo {} > made{}; pwd"
    done = submit(shared, here, "--array", "1-3", "--", "sh", "-c", script)
    assert done.stdout.split() == [str(here)] * 3
    assert [(here / f"made{n}").read_text() for n in (1, 2, 3)] == ["1\n", "2\n", "3\n"]
    assert "deleted" not in done.stderr


def test_files_in_a_private_directory_are_reported_as_deleted(shared: Home, here: Path) -> None:
    script = "echo data > out.bam; echo log > run.log"
    done = submit(shared, here, "--scratch", "--array", "1-4", "--", "sh", "-c", script)
    assert done.returncode == 0
    (told,) = [line for line in done.stderr.splitlines() if "deleted" in line]
    assert "out.bam, run.log" in told
    assert "--scratch" in told
    assert list(here.iterdir()) == [here / "data.csv"]
    done = submit(shared, here, "--in", "data.csv", "--", "cat", "data.csv")
    assert (done.stdout, done.stderr) == (DATA, "")


def test_a_program_finds_its_private_directory_in_the_environment(shared: Home, here: Path) -> None:
    script = 'cd "$CIEL_SCRATCH" && pwd && ls | wc -l'
    done = submit(shared, here, "--", "sh", "-c", script)
    directory, count = done.stdout.split()
    assert directory != str(here)
    assert count == "0"


@pytest.mark.slow
def test_the_callers_variables_reach_programs_of_an_existing_cluster(
    shared: Home, here: Path
) -> None:
    words = ["sh", "-c", "echo $FRUIT-$FRUIT_TOKEN-$CIEL_ELEMENT"]
    done = submit(shared, here, "--array", "7", "--", *words, FRUIT="pear", FRUIT_TOKEN="x")
    assert done.stdout == "pear--7\n"
    clean = submit(shared, here, "--clean-env", "--", *words, FRUIT="pear")
    assert clean.stdout == "--\n"
    added = submit(shared, here, "--clean-env", "--env", "FRUIT", "--", *words, FRUIT="pear")
    assert added.stdout == "pear--\n"


def test_variables_that_the_caller_lacks_are_unset(shared: Home, here: Path) -> None:
    path = shared.environ["PATH"]
    done = submit(shared, here, "--", "sh", "-c", "echo $PATH; env | grep -c ^LANGUAGE=; true",
                  PATH=f"{path}:/more")  # fmt: skip
    assert done.stdout.split() == [f"{path}:/more", "0"]


@pytest.mark.slow
def test_a_sent_script_runs_by_its_base_name(shared: Home, here: Path) -> None:
    (here / "sub").mkdir()
    script = here / "s.sh"
    script.write_text("#!/bin/sh\necho ran in $PWD\n")
    script.chmod(0o755)
    for words in (("../s.sh", "./s.sh"), ("../s.sh", "../s.sh"), (str(script), "./s.sh")):
        done = submit(shared, here / "sub", "--in", words[0], "--", words[1])
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("ran in ")
        assert str(here) not in done.stdout
    script.chmod(0o644)
    done = submit(shared, here / "sub", "--in", "../s.sh", "--", "./s.sh")
    assert "it is not executable; chmod +x makes it so" in done.stderr


@pytest.mark.slow
def test_f_cwd_names_another_directory(shared: Home, here: Path) -> None:
    (here / "sub").mkdir()
    assert submit(shared, here, "--cwd", "sub", "--", "pwd").stdout == f"{here}/sub\n"
    gone = submit(shared, here, "--cwd", "gone", "--", "pwd")
    assert gone.returncode == 1
    for part in (f"{here}/gone", "no such directory", "host ", "--cwd DIR", "--scratch"):
        assert part in gone.stderr
    for option in (["--scratch"], ["--in", "data.csv"], ["--object", "a=b"]):
        refused = submit(shared, here, "--cwd", "sub", *option, "--", "pwd")
        assert refused.returncode == 2
        assert "--cwd" in refused.stderr


# --- inputs ---------------------------------------------------------------------------------------

CHANGES = [
    'echo x >> "$1"',
    'echo y | dd of="$1" conv=notrunc',
    'chmod 600 "$(realpath "$1")" && : > "$1"',
]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_no_program_can_change_inputs_of_others(shared: Home, here: Path, change: str) -> None:
    (here / "big.txt").write_text("".join([f"{n}\n" for n in range(300_000)]))
    script = f"({change}) 2> /dev/null; true"
    words = ["--in", "big.txt", "--array", "1-4", "--", "sh", "-c", script, "sh", "big.txt"]
    done = submit(shared, here, *words)
    if not may_mount():
        return  # the next test covers this case
    assert done.returncode == 0, done.stderr
    with ciel.Client(environ=shared.environ) as client:
        made = client.run(["seq", "300000"])
        spoil = client.run(["sh", "-c", change, "sh", made])
        with pytest.raises(ciel.TaskError, match=PROTECTED):
            spoil.result(WITHIN_S)
        count = client.run(["wc", "-lc"], stdin=made)
        assert count.result(WITHIN_S).split() == [b"300000", b"1988895"]


PROTECTED = "Read-only file system|I/O error|error writing|cannot access '/memfd:"
"""The errors of programs that try to change an input: a file, or a sealed copy from an image."""


def use_files(home: Home) -> None:
    """Use the disk in place of an image, whose copies for programs nothing can change."""
    if home.environ.get("CIEL_STORE", "").startswith("scc"):
        home.environ["CIEL_STORE"] = "disk"


only_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can drop its own right to mount"
)
NO_MOUNTS = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
CHANGES_AND_GOES_ON = """
import ciel, pathlib, time

change = "printf x | dd of=$1 conv=notrunc status=none; touch changed; sleep 60"
with ciel.LocalCluster(workers=1, slots=2) as cluster, ciel.Client(cluster) as client:
    zeros = client.run(["head", "-c", "2M", "/dev/zero"])
    changing = client.run(["sh", "-c", change, "sh", zeros])
    while not pathlib.Path("changed").exists():
        time.sleep(0.01)
    after = client.run(["sum"], stdin=zeros)
    print(after.result(30))
    changing.cancel()
"""


def submit_weak(home: Home, here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `ciel submit` where neither it nor its cluster may mount anything."""
    ciel_path = shutil.which("ciel", path=home.environ["PATH"]) or "ciel"
    return subprocess.run(
        [*NO_MOUNTS, ciel_path, "submit", "--quiet", *words], cwd=here, env=home.environ,
        timeout=WITHIN_S, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@only_root
def test_changes_of_unprotected_inputs_are_detected(home: Home, here: Path) -> None:
    use_files(home)
    (here / "big.txt").write_text("".join([f"{n}\n" for n in range(300_000)]))
    (here / "small.txt").write_text("old\n")
    small = "echo {} >> small.txt; tr '\\n' ' ' < small.txt; echo"
    done = submit_weak(home, here, "--in", "small.txt", "--array", "1-3", "sh", "-c", small)
    assert done.stdout == "old 1 \nold 2 \nold 3 \n", done.stderr
    count = "wc -l < big.txt; [ {} != 1 ] || echo x >> big.txt"
    big = ["--in", "big.txt", "--array", "1-3", "--out", "counts", "sh", "-c", count]
    done = submit_weak(home, here, *big)
    assert done.returncode == 1
    assert "its input big.txt was changed while it ran" in done.stderr
    results = [path for path in (here / "counts").iterdir() if path.suffix != ".failed"]
    assert {path.read_text() for path in results} <= {"300000\n"}, (
        sorted(os.listdir(here / "counts")),
        done.stderr,
    )


@pytest.mark.slow
@only_root
def test_an_input_that_another_program_removed_is_detected(home: Home, here: Path) -> None:
    """Without this check the result would look as if the program had read an empty file."""
    use_files(home)
    (here / "big.txt").write_text("".join([f"{n}\n" for n in range(300_000)]))
    removed = here / "removed"
    remove = f"rm -f $(readlink -f big.txt); touch {removed}"
    read = f"until [ -e {removed} ]; do sleep 0.05; done; wc -l < big.txt; true"
    script = f"if [ {{}} = 1 ]; then {remove}; else {read}; fi"
    done = submit_weak(home, here, "--in", "big.txt", "--array", "1-2", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("its input big.txt was deleted while it ran") == 2, done.stderr


@pytest.mark.slow
@only_root
def test_a_change_is_detected_while_its_program_runs(here: Path) -> None:
    """A program that starts meanwhile finds the input in its full size, because it is
    recomputed.
    """
    command = [*NO_MOUNTS, sys.executable, "-c", CHANGES_AND_GOES_ON]
    done = subprocess.run(command, cwd=here, timeout=WITHIN_S, capture_output=True, text=True)
    assert done.stdout == "b'00000  2048\\n'\n", (done.stdout, done.stderr)


def may_mount() -> bool:
    """Return whether a process of ours may have its own mount namespace."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
