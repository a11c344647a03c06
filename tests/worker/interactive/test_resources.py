"""Programs that stay running serve tasks whose indices they have had before, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ciel.core.offers.resources import read_amounts, read_offer
from ciel.core.tasks import Needs
from ciel.testing.homes import wait_for
from ciel.worker.state.orders import Key
from ciel_tests.scenes.one_worker import Talker
from ciel_tests.scenes.puppet_words import Start

SHOW = """def run(task):
    import json
    names = ("CIEL_RESOURCES", "CIEL_RESOURCE_GPU", "CUDA_VISIBLE_DEVICES")
    found = {name: os.environ.get(name) for name in names}
    task.soft_cache_keys = [("x", "kept")]
    task.publish(0, json.dumps([os.getpid(), found]).encode())
    while task.args and not os.path.exists(task.args[0]):
        time.sleep(0.01)"""


def needs_gpu(amount: float) -> Needs:
    return Needs(resources=read_amounts({"gpu": amount} if amount else {}))


def shown(worker: Talker, key: Key) -> tuple[int, dict[str, Any]]:
    pid, variables = json.loads(worker.content(key))
    return pid, variables


def test_a_warm_program_serves_tasks_with_its_own_indices_only(
    start: Start, tmp_path: Path
) -> None:
    worker = start(resources=[read_offer("gpu=[4-5]")])
    go = str(tmp_path / "go")
    keys = [worker.python(SHOW, go, needs=needs_gpu(1)) for _ in range(2)]
    wait_for(lambda: len(worker.programs()) == 2, "two programs")
    Path(go).touch()
    first, second = (shown(worker, key) for key in keys)
    variables = [found["CUDA_VISIBLE_DEVICES"] for _, found in (first, second)]
    assert sorted(variables) == ["4", "5"]
    pid_of = {found["CIEL_RESOURCE_GPU"]: pid for pid, found in (first, second)}
    pid, found = shown(worker, worker.python(SHOW, needs=needs_gpu(1)))
    assert (pid, found["CIEL_RESOURCES"]) == (pid_of["4"], "gpu=1")
    pid, found = shown(worker, worker.python(SHOW))
    assert pid not in pid_of.values()
    assert set(found.values()) == {None}


def test_an_idle_program_gives_its_devices_up_for_a_task_of_another_kind(start: Start) -> None:
    worker = start(resources=[read_offer("gpu=[0]")])
    whole, _ = shown(worker, worker.python(SHOW, needs=needs_gpu(1)))
    wait_for(lambda: worker.programs() == [whole], "an idle program")
    half, found = shown(worker, worker.python(SHOW, needs=needs_gpu(0.5)))
    assert (half != whole, found["CUDA_VISIBLE_DEVICES"]) == (True, "0")
    wait_for(lambda: worker.programs() == [half], "the end of the program with the device")
    batch = worker.task("stdinout", {"args": {"inputs": [], "command_line": ["printenv"]}},
                        needs=needs_gpu(0.5))  # fmt: skip
    assert b"\nCIEL_RESOURCE_GPU=0\n" in worker.content(worker.assign(batch))
    wait_for(lambda: worker.programs() == [], "the end of the program with the device")
