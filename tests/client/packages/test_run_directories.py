import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ciel.client.cluster.run_directories import RUNS_KEPT, RunDirectory, Sweeper
from ciel.storage import leases


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def test_the_last_runs_are_kept(environ: dict[str, str], tmp_path: Path) -> None:
    made = []
    for _ in range(RUNS_KEPT + 3):
        run = RunDirectory(environ)
        (run.path / "master.log").write_text("x")
        run.release()
        made.append(run.path)
    assert sorted((tmp_path / "ciel" / "runs").iterdir()) == sorted(made[-RUNS_KEPT:])


def test_a_run_directory_in_use_is_not_pruned(environ: dict[str, str]) -> None:
    first = RunDirectory(environ)
    for _ in range(RUNS_KEPT + 1):
        RunDirectory(environ).release()
    assert first.path.is_dir()
    first.release()
    RunDirectory(environ).release()
    assert not first.path.exists()


def test_only_its_owner_can_look_inside(environ: dict[str, str]) -> None:
    run = RunDirectory(environ)
    assert run.path.stat().st_mode & 0o777 == 0o700
    run.release()


def _full_directory(path: Path) -> Path:
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "file").write_text("x")
    (path / "a" / "file").chmod(0o400)
    return path


def test_a_sweeper_removes_directories_when_asked(tmp_path: Path) -> None:
    paths = [_full_directory(tmp_path / name) for name in ("one two", "-rf", "$HOME")]
    launcher = subprocess.Popen(["true"])
    launcher.wait()
    sweeper = Sweeper(launcher.pid)
    sweeper.add(paths)
    sweeper.finish()
    assert list(tmp_path.iterdir()) == []


def test_the_sweeper_removes_half_removed_directories_in_memory() -> None:
    """A worker that is killed while it removes a directory leaves it under another name (see
    `leases`).
    """
    instance = Path("/dev/shm", f"ciel-{secrets.token_hex(8)}")
    half, other = Path(f"{instance}.{secrets.token_hex(8)}"), Path(f"{instance}x")
    for directory in (half, other):
        directory.mkdir()
        (directory / "object").write_bytes(b"content")
    sweeper = Sweeper(2**22 + 1)  # no process has this id
    sweeper.add([instance])
    sweeper.finish()
    assert not half.exists()
    assert other.exists()
    shutil.rmtree(other)


def test_a_sweeper_leaves_directories_with_a_held_lease(tmp_path: Path) -> None:
    names = ("ciel-dead", "ciel-held", "ciel-of * 1", "ciel-of * 2", "ciel-off", "not of ciel")
    paths = {name: _full_directory(tmp_path / name) for name in names}
    (tmp_path / "ciel-link").symlink_to(paths["ciel-off"])
    (tmp_path / "ciel-of * file").touch()
    holder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    held = [leases.hold(name, parent_fd=holder) for name in ("ciel-held", "ciel-of * 2")]
    sweeper = Sweeper(2**22 + 1)  # no process has this id
    leased = [str(paths[name]) for name in ("ciel-dead", "ciel-held", "not of ciel")]
    leased.append(f"{tmp_path}/ciel-of *")
    sweeper.add_leased([*leased, f"{tmp_path}/ciel-link", f"{tmp_path}/absent"])
    sweeper.finish()
    left = ["ciel-held", "ciel-link", "ciel-of * 2", "ciel-of * file", "ciel-off", "not of ciel"]
    assert sorted(os.listdir(tmp_path)) == left
    for fd in (*held, holder):
        os.close(fd)


def test_a_sweeper_waits_for_the_launcher(tmp_path: Path) -> None:
    path = _full_directory(tmp_path / "spool")
    launcher = subprocess.Popen(
        ["sh", "-c", 'sleep 0.3; mkdir -p "$1"; touch "$1/late"', "sh", str(path)]
    )
    sweeper = Sweeper(launcher.pid)
    sweeper.add([path])
    sweeper.let_go()
    launcher.wait()
    os.waitpid(sweeper._pid, 0)
    assert not path.exists()


def test_a_sweeper_outlives_its_killed_process(tmp_path: Path) -> None:
    path = _full_directory(tmp_path / "spool")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from ciel.client.cluster.run_directories import Sweeper\n"
        "sweeper = Sweeper(2**22 + 1); sweeper.add([Path(sys.argv[1])])\n"
        "print('made', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert path.exists()
        os.killpg(owner.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not path.exists()
