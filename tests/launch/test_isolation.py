"""Tests the command lines of sandboxes, control groups, and that programs gain no privileges."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ciel.launch import LaunchSpec
from ciel.launch.control_groups import ControlGroups
from ciel.launch.isolation import PROGRAM, Sandbox, Surroundings
from ciel.launch.messages import File


def words_of(spec: LaunchSpec) -> list[str]:
    argv = [str(word) for word in spec.argv]
    assert argv[0] == PROGRAM
    return argv[1 : argv.index("--")]


def sandbox(**options: Any) -> Sandbox:
    around = Surroundings(("/private", "/spool"), (), ("/state/ciel",))
    return Sandbox(around, **{"is_strict": True, "scratch": "/spool/scratch/1/", **options})


def test_a_program_reaches_files_of_its_worker_by_descriptors_of_init() -> None:
    box = sandbox()
    assert box.path("/proc/7/fd/9") == "/proc/1/fd/3"
    assert box.path("/spool/store/1", writable=True) == "/proc/1/fd/4"
    assert box.path("/spool/scratch/1.in/2") == "/spool/scratch/1.in/2"
    words = words_of(box.wrap(LaunchSpec(["sort"], "/spool/scratch/1/")))
    assert [word for word in words if word[0] in "rw"] == ["r:/proc/7/fd/9", "w:/spool/store/1"]


def test_secrets_are_hidden_after_the_working_directory_is_shown(tmp_path: Path) -> None:
    around = Surroundings((str(tmp_path),), (), (f"{tmp_path}/secret",))
    box = Sandbox(around, is_strict=True, scratch="/spool/scratch/1/")
    words = words_of(box.wrap(LaunchSpec(["sort"], str(tmp_path))))
    order = [f"-:{tmp_path}", f"=:{tmp_path}", f"-:{tmp_path}/secret", "+:/spool/scratch/1"]
    assert [word for word in words if word in order] == order


def test_only_the_scratch_directory_is_writable() -> None:
    words = words_of(sandbox().wrap(LaunchSpec(["sort"], "/work"), "/spool/scratch/1.in"))
    assert [word for word in words if word[0] == "+"] == ["+:/spool/scratch/1"]
    assert "=:/spool/scratch/1.in" in words


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"is_strict": True}, ["--network=none", "--cap-drop=all", "--pull=never"]),
        ({"is_strict": False}, ["--network=host", "--pull=never"]),
        ({"image": "docker://tools"}, ["--pull=missing"]),
    ],
)
def test_a_container_gets_the_options_of_its_level(
    options: dict[str, Any], expected: list[str]
) -> None:
    box = sandbox(**{"image": "tools", "container": "podman", "name": "ciel-1", **options})
    argv = box.wrap(LaunchSpec(["sort", "-u"], "/work", {"A": "b", "PATH": "/x"})).argv
    for option in (*expected, "--name=ciel-1", "--env=A", "--entrypoint=sort"):
        assert option in argv
    assert argv[-2:] == ["tools", "-u"]
    assert "--env=PATH" not in argv


def test_apptainer_runs_image_files() -> None:
    box = sandbox(image="tools.sif", container="apptainer", is_strict=False)
    argv = box.wrap(LaunchSpec(["sort", "-u"], "/work")).argv
    assert argv[-3:] == ["tools.sif", "sort", "-u"]
    assert "--bind=/work:/work" in argv


def a_host(root: Path, *, controllers: str) -> Path:
    """Create the files of a host with control groups of version 2; return the delegated group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/user/worker\n")
    group = root / "sys/fs/cgroup/user"
    (group / "worker").mkdir(parents=True)
    (group / "cgroup.subtree_control").write_text(controllers)
    return group


def test_groups_lie_beside_the_workers_group_where_that_is_delegated(tmp_path: Path) -> None:
    delegated = a_host(tmp_path, controllers="cpu memory pids\n")
    group = ControlGroups(tmp_path).create(64, 0, 0)
    assert group is not None
    assert group.path.parent == delegated
    assert (group.path / "pids.max").read_text() == "64"


def test_without_the_controller_there_is_no_group(tmp_path: Path) -> None:
    a_host(tmp_path, controllers="cpu memory\n")
    assert ControlGroups(tmp_path).create(64, 0, 0) is None


@pytest.mark.parametrize("forbids, shown", [(True, "1"), (False, "0")])
def test_programs_gain_no_privileges_where_that_is_forbidden(
    run: Callable[[LaunchSpec], object], tmp_path: Path, forbids: bool, shown: str
) -> None:
    output = tmp_path / "status"
    argv = ["grep", "NoNewPrivs", "/proc/self/status"]
    run(LaunchSpec(argv, stdout=File(output), no_new_privileges=forbids))
    assert output.read_text().split()[1] == shown
