"""Named resources and labels on real daemons, in each way to make a task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import ciel
from ciel import Client
from ciel.client.cluster import LocalCluster
from ciel.client.errors import TaskFailedError
from ciel.core.offers.resources import read_amounts
from ciel.core.tasks import Needs
from ciel.python.options import OptionError

pytestmark = pytest.mark.slow

WITHIN_S = 30.0
OFFERS = ("--resource", "gpu=[0-1]", "--resource", "licence/x=1", "--label", "zone=b")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("resources")
    cluster = LocalCluster(slots=2, directory=directory, offers=OFFERS)
    with cluster, Client(cluster) as client:
        yield client


def devices() -> tuple[str, str]:
    return os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ.get("CIEL_RESOURCES", "")


def test_calls_of_python_functions_get_their_devices(client: Client) -> None:
    on_gpu = ciel.task(resources={"gpu": 1}, where="zone=b")(devices)
    found = [future.result(WITHIN_S) for future in [client.submit(on_gpu) for _ in range(2)]]
    assert {device for device, _ in found} <= {"0", "1"}
    assert {asked for _, asked in found} == {"gpu=1"}
    half = on_gpu.options(resources={"gpu": 0.5})
    assert client.submit(half).result(WITHIN_S)[1] == "gpu=0.5"
    assert client.submit(devices).result(WITHIN_S) == ("", "")
    assert repr(half).count("resources={'gpu': 0.5}") == 1


def test_a_task_spawns_tasks_that_need_resources(client: Client) -> None:
    @ciel.task(resources={"gpu": 2})
    def parent() -> list[str]:
        child = ciel.task(resources={"gpu": 1}, where="zone=b")(devices)
        before = os.environ["CUDA_VISIBLE_DEVICES"]
        inner = child.spawn().result()[0]
        return [before, inner, os.environ["CUDA_VISIBLE_DEVICES"]]

    before, inner, after = client.submit(parent).result(WITHIN_S)
    assert before == after == "0,1"
    assert inner in ("0", "1"), "the parent has given its devices back while it waits"


def test_wrong_options_are_refused_where_the_task_is_written() -> None:
    for options, why in (
        ({"resources": {"GPU": 1}}, "is not the name of a resource"),
        ({"resources": {"gpu": "many"}}, "gpu: 'many' is not a number"),
        ({"resources": 1}, "it must be a dictionary"),
        ({"where": "zone="}, "at character 6: zone=⟨here⟩"),
        ({"where": 1}, "it must be a text"),
    ):
        with pytest.raises(OptionError, match=why):
            ciel.task(**options)(devices)


def test_what_no_worker_offers_fails_with_what_there_is(client: Client) -> None:
    job = client.job()
    needs = Needs(resources=read_amounts({"gpu": 3}))
    ref = job.run(["true"], needs=needs)
    with pytest.raises(TaskFailedError, match=r"no worker has gpu=3 \(offered: gpu=2 on "):
        job.read(ref, WITHIN_S)
    job.cancel()


def test_explain_and_status_show_resources(client: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = ["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done; echo $CIEL_RESOURCES"]
    needs = Needs(resources=read_amounts({"licence/x": 1}), where="has zone")
    with client.job() as job:
        made = [job.run([*wait, str(number)], needs=needs) for number in range(2)]
        job.want(made)
        why: list[str] = []
        while not any("it needs licence/x=1 where has zone" in line for line in why):
            tasks = [client.ask("task", {"object": ref.id}) for ref in made]
            why = [line for task in tasks for line in task["why"]]
        assert any("0 of 1 licence/x free" in line for line in why)
        (offering,) = client.ask("status")["workers"]
        assert offering["resources"] == {
            "gpu": {"total": 2, "used": 0, "indices": ["0", "1"]},
            "licence/x": {"total": 1, "used": 1, "indices": []},
        }
        assert offering["labels"]["zone"] == "b"
        assert tasks[0]["needs"]["resources"] == {"licence/x": 1}
        go.touch()
        assert [job.read(ref, WITHIN_S) for ref in made] == [b"licence/x=1\n"] * 2
