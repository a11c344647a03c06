"""Runs `ciel submit` with levels of isolation and images on real clusters, with real containers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import wait_for

pytestmark = pytest.mark.slow
CIEL = Path(sys.executable).with_name("ciel")
IMAGE = f"localhost/ciel-test-{os.getpid()}"
BUSYBOX = "/bin/busybox"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `ciel submit` on a cluster of its own; return how it ended."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()

    def submit(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "HOME": str(home), **environ}
        env.pop("XDG_STATE_HOME", None)
        command = [str(CIEL), "submit", "--quiet", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)

    return submit


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Make an image of busybox, without any registry; use runc and the host's limits."""
    for program in ("podman", "buildah", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not os.path.exists(BUSYBOX):
        pytest.skip("busybox-static is not installed")
    conf = tmp_path_factory.mktemp("containers") / "containers.conf"
    limits = 'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]'
    conf.write_text(f'[containers]\n{limits}\n[engine]\nruntime = "runc"\n')
    os.environ["CONTAINERS_CONF"] = str(conf)

    def build(*words: str) -> str:
        return subprocess.run(
            ["buildah", *words], capture_output=True, text=True, check=True
        ).stdout

    container = build("from", "scratch").strip()
    for name in ("sh", "cat", "id", "sleep", "touch", "wc"):
        build("copy", container, BUSYBOX, f"/bin/{name}")
    build("commit", container, IMAGE)
    build("rm", container)
    yield IMAGE
    build("rmi", IMAGE)
    del os.environ["CONTAINERS_CONF"]


def test_an_untrusted_program_reads_its_input_and_writes_its_scratch(
    submit: Run, tmp_path: Path
) -> None:
    program = tmp_path / "untrusted"
    program.write_text('#!/bin/sh\ncat "$1"; touch "$CIEL_SCRATCH/a" && touch b || echo refused\n')
    program.chmod(0o755)
    (tmp_path / "words").write_text("pear\n")
    done = submit("--isolate", "strict", "--", "./untrusted", "words")
    assert done.stdout == "pear\nrefused\n", done.stderr
    assert not (tmp_path / "b").exists()
    assert submit("--", "./untrusted", "words").stdout == "pear\n"
    assert (tmp_path / "b").exists()


def test_a_large_input_is_read_but_not_written(submit: Run, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 5000)
    script = "wc -c < large; echo y > large || echo refused"
    done = submit("--isolate", "strict", "--in", "large", "--", "sh", "-c", script)
    assert done.stdout == "5000\nrefused\n", done.stderr


def test_a_worker_raises_the_level_of_all_tasks(submit: Run) -> None:
    script = "ls /proc | grep -c '^[0-9]'"
    assert int(submit("--", "sh", "-c", script, CIEL_ISOLATE="strict").stdout) <= 5
    assert int(submit("--", "sh", "-c", script).stdout) > 5
    done = submit("--isolate", "limits", "--", "true", CIEL_ISOLATE="strict")
    assert "isolates programs at least by 'strict'" in done.stderr


def test_a_program_that_does_not_exist_is_named(submit: Run) -> None:
    done = submit("--isolate", "strict", "--", "/nowhere/program")
    assert done.returncode == 1
    assert "'/nowhere/program' could not be started" in done.stderr


def test_a_program_runs_in_an_image(submit: Run, image: str, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("pear\n")
    script = "cat words; cat /etc/os-release || touch made"
    done = submit("--image", image, "--", "sh", "-c", script)
    assert done.stdout == "pear\n", done.stderr
    assert (tmp_path / "made").exists()


def test_strict_images_have_no_network_and_write_nowhere_else(
    submit: Run, image: str, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(b"x" * 5000)
    script = "wc -c < large; cat /proc/net/dev | wc -l; touch /bin/x || echo refused"
    words = ["--isolate", "strict", "--image", image, "--in", "large"]
    done = submit(*words, "--", "sh", "-c", script)
    assert done.stdout == "5000\n3\nrefused\n", done.stderr


def test_an_image_that_is_missing_is_named(submit: Run, image: str) -> None:
    done = submit("--image", "localhost/none-of-that-name", "--", "true")
    assert "none-of-that-name: image not known" in done.stderr


def test_a_container_ends_with_its_time_limit(submit: Run, image: str) -> None:
    marker = f"7{os.getpid()}"
    done = submit("--image", image, "--timeout", "3s", "--", "sleep", marker)
    assert "longer than its limit" in done.stderr
    running = ["pgrep", "-f", f"^sleep {marker}"]
    wait_for(lambda: subprocess.run(running).returncode == 1, "the container to end")
    submit("--image", image, "--", "id")  # the next worker removes the container's record
    listed = ["podman", "ps", "--all", "--quiet", "--filter=label=ciel.scratch"]
    wait_for(lambda: not subprocess.run(listed, capture_output=True).stdout, "its removal")
