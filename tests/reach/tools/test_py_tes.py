"""Uses the routes of TES by py-tes, the client of its reference server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster

Tool = Callable[..., str]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import sys
import tes

client = tes.HTTPClient(sys.argv[1] + "/ga4gh/tes", token=sys.argv[2])
info = client.get_service_info()
print(info.name)
task = tes.Task(
    name="shapes",
    inputs=[tes.Input(path="/data/in", content="square", type="FILE")],
    outputs=[tes.Output(path="/data/out", url="file://" + sys.argv[3], type="FILE")],
    resources=tes.Resources(cpu_cores=1, ram_gb=1),
    executors=[tes.Executor(image="none", command=["cp", "/data/in", "/data/out"])],
    tags={"kind": "test"},
)
task_id = client.create_task(task)
print(client.wait(task_id, timeout=60).state)
full = client.get_task(task_id, "FULL")
print(full.logs[0].logs[0].exit_code, full.inputs[0].content, full.tags["kind"], full.creation_time)
failed = client.create_task(tes.Task(executors=[tes.Executor(image="none", command=["false"])]))
print(client.wait(failed, timeout=60).state)
running = client.create_task(
    tes.Task(executors=[tes.Executor(image="none", command=["sleep", "1000"])])
)
client.cancel_task(running)
client.wait(running, timeout=60)
listed = client.list_tasks(view="BASIC", page_size=2)
print(len(listed.tasks), listed.next_page_token is not None)
"""


def test_py_tes_creates_reads_lists_and_cancels_tasks(
    tool: Tool, cluster: HandCluster, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "out"
    printed = tool("python", "program.py", cluster.url, cluster.key, os.fspath(out)).splitlines()
    assert out.read_text() == "square"
    assert printed[:2] == ["ciel", "COMPLETE"]
    assert printed[2].startswith("0 square test 20")
    assert printed[3:] == ["EXECUTOR_ERROR", "2 True"]
