"""Carries out tasks of TES without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ciel.executors.programs import tes
from ciel.executors.programs.tes import carry_out


class Runner:
    """Carries out tasks in a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *commands: list[str], **task: Any) -> tuple[str, dict[str, Any]]:
        """Return the state and the log of a task with these commands."""
        task.setdefault("executors", [{"image": "", "command": each} for each in commands])
        return carry_out(task, f"{self.path}/root")


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_the_program_writes_a_status_and_a_log(tmp_path: Path) -> None:
    status, log = tmp_path / "status", tmp_path / "log"
    task = json.dumps({"executors": [{"image": "", "command": ["echo", "text"]}]})
    given = b"".join(text.encode() + b"\0" for text in (task, f"{status}", f"{log}"))
    command = [sys.executable, "-I", "-S", tes.__file__]
    subprocess.run(command, input=given, cwd=tmp_path, check=True)
    assert json.loads(status.read_text()) == {"state": "COMPLETE"}
    assert json.loads(log.read_text())["logs"][0]["stdout"] == "text\n"


def test_commands_run_in_order_and_share_volumes(runner: Runner) -> None:
    state, log = runner.run(
        ["sh", "-c", "echo first >/vol/a/x"], ["cat", "/vol/a/x"], volumes=["/vol/a"]
    )
    assert (state, [each["exit_code"] for each in log["logs"]]) == ("COMPLETE", [0, 0])
    assert log["logs"][1]["stdout"] == "first\n"
    assert log["logs"][0]["start_time"] <= log["logs"][1]["start_time"] <= log["end_time"]


def test_inputs_are_placed_and_outputs_stored(runner: Runner) -> None:
    (runner.path / "tree").mkdir()
    (runner.path / "tree/leaf").write_text("leaf")
    state, log = runner.run(
        ["sh", "-c", "mkdir /out/d; cat /in/text /in/tree/leaf >/out/d/both; echo 1 >/out/1.log"],
        inputs=[
            {"path": "/in/text", "content": "größer, "},
            {"path": "/in/tree", "url": f"file://{runner.path}/tree", "type": "DIRECTORY"},
        ],
        outputs=[
            {"path": "/out/d", "url": f"file://{runner.path}/stored/d", "type": "DIRECTORY"},
            {"path": "/out/*.log", "path_prefix": "/out", "url": f"{runner.path}/logs"},
        ],
    )
    assert (state, log["system_logs"]) == ("COMPLETE", [])
    assert (runner.path / "stored/d/both").read_text() == "größer, leaf"
    assert (runner.path / "logs/1.log").read_text() == "1\n"
    assert [each["path"] for each in log["outputs"]] == ["/out/d/both", "/out/1.log"]
    assert log["outputs"][0]["size_bytes"] == "14"


def test_a_failed_command_ends_the_task(runner: Runner) -> None:
    state, log = runner.run(["sh", "-c", "echo why >&2; exit 3"], ["echo", "never"])
    assert (state, len(log["logs"])) == ("EXECUTOR_ERROR", 1)
    assert (log["logs"][0]["exit_code"], log["logs"][0]["stderr"]) == (3, "why\n")


def test_a_command_whose_error_is_ignored_does_not_end_it(runner: Runner) -> None:
    commands = [{"image": "", "command": ["false"], "ignore_error": True}]
    state, log = runner.run(executors=[*commands, {"image": "", "command": ["true"]}])
    assert (state, [each["exit_code"] for each in log["logs"]]) == ("COMPLETE", [1, 0])


def test_a_command_that_does_not_exist_fails(runner: Runner) -> None:
    state, log = runner.run(["no-such-program"])
    assert (state, log["logs"][0]["exit_code"]) == ("EXECUTOR_ERROR", 127)
    assert "no-such-program" in log["logs"][0]["stderr"]


def test_streams_directory_and_variables(runner: Runner) -> None:
    executor = {
        "image": "", "command": ["sh", "-c", "cat; echo $WHERE; pwd; echo err >&2"],
        "stdin": "/i", "stdout": "/logs/o", "stderr": "/logs/e", "workdir": "/data/w",
        "env": {"WHERE": "/data/w/x:/other"},
    }  # fmt: skip
    outputs = [{"path": f"/logs/{name}", "url": f"{runner.path}/{name}"} for name in "oe"]
    inputs = [{"path": "/i", "content": "in\n"}]
    state, log = runner.run(executors=[executor], inputs=inputs, outputs=outputs)
    where = runner.path / "root/data/w"
    assert state == "COMPLETE", log
    assert (runner.path / "o").read_text() == f"in\n{where}/x:/other\n{where}\n"
    assert (runner.path / "e").read_text() == "err\n"


@pytest.mark.parametrize(
    "task, reason",
    [
        ({"inputs": [{"path": "/a", "url": "s3://bucket/a"}]}, "s3://bucket/a: only file, http"),
        ({"inputs": [{"path": "/a", "url": "file:///no/such/file"}]}, "No such file"),
        (
            {"outputs": [{"path": "/a", "url": "/tmp/never"}]},
            "no command has written the output /a",
        ),
    ],
)
def test_files_that_cannot_be_moved_are_errors_of_the_system(
    runner: Runner, task: dict[str, Any], reason: str
) -> None:
    state, log = runner.run(["true"], **task)
    assert state == "SYSTEM_ERROR"
    assert reason in log["system_logs"][0]


def test_only_declared_paths_are_replaced(runner: Runner) -> None:
    words = ["/in/a", "--x=/in/a", "/in/abc", "/tmp/in/a", "/in/a/b", "/in/a.gz"]
    state, log = runner.run(["echo", *words], inputs=[{"path": "/in/a", "content": ""}])
    root = runner.path / "root"
    expected = [
        f"{root}/in/a",
        f"--x={root}/in/a",
        "/in/abc",
        "/tmp/in/a",
        f"{root}/in/a/b",
        "/in/a.gz",
    ]
    assert log["logs"][0]["stdout"].split() == expected
    assert state == "COMPLETE"
