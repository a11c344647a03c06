"""Creates, lists, reads and cancels tasks of TES over HTTP, in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.access.keys import Role
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.documents.schemas import Schemas
from ciel_tests.http.routes import Door, Told

pytestmark = pytest.mark.slow

ROOT = "/ga4gh/tes/v1"


class Tes:
    """A client for the routes of TES."""

    def __init__(self, cluster: HandCluster) -> None:
        self.cluster = cluster
        self.door = Door(cluster.url.removeprefix("http://"), cluster.key)
        self._schemas = Schemas()

    def ask(self, method: str, path: str, body: Any = None) -> Told:
        return self.door.ask_as(Role.SUBMIT, method, ROOT + path, body)

    def get(self, path: str, schema: str) -> Any:
        told = self.ask("GET", path)
        assert told.status == 200, told
        self._schemas.check(schema, told.json())
        return told.json()

    def create(self, *commands: list[str], **task: Any) -> str:
        executors = [{"image": "none", "command": command} for command in commands]
        told = self.ask("POST", "/tasks", {"executors": executors, **task})
        assert told.status == 200, told
        return str(told.json()["id"])

    def state(self, task: str) -> str:
        return str(self.get(f"/tasks/{task}", "tes-task")["state"])

    def ended(self, task: str) -> Any:
        over = ("COMPLETE", "EXECUTOR_ERROR", "SYSTEM_ERROR", "CANCELED")
        wait_for(lambda: self.state(task) in over, "the end of the task")
        return self.get(f"/tasks/{task}?view=FULL", "tes-task")


@pytest.fixture(scope="module")
def tes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tes]:
    home = Home(tmp_path_factory.mktemp("tes"))
    home.environ["CIEL_TES_IMAGES"] = "ignore"
    cluster = HandCluster.start(home, 1, of_master=("--journal", str(home.path / "journal")))
    yield Tes(cluster)
    cluster.stop()


def test_a_task_runs_and_is_described(tes: Tes, tmp_path: Path) -> None:
    task = tes.create(
        ["cp", "/in", "/out"],
        ["sh", "-c", "yes | head -c 5000"],  # its log is too long for a reference
        name="copy",
        inputs=[{"path": "/in", "content": "text"}],
        outputs=[{"path": "/out", "url": f"file://{tmp_path}/out"}],
    )
    full = tes.ended(task)
    assert full["state"] == "COMPLETE"
    assert (tmp_path / "out").read_text() == "text"
    (log,) = full["logs"]
    assert [entry["exit_code"] for entry in log["logs"]] == [0, 0]
    assert len(log["logs"][1]["stdout"]) == 5000
    assert full["inputs"] == [{"path": "/in", "content": "text"}]
    basic = tes.get(f"/tasks/{task}?view=BASIC", "tes-task")
    assert basic["inputs"] == [{"path": "/in"}]
    assert tes.get(f"/tasks/{task}", "tes-task") == {"id": task, "state": "COMPLETE"}


def test_a_failed_command_and_an_unknown_url_differ(tes: Tes) -> None:
    failed = tes.create(["false"])
    unknown = tes.create(["true"], inputs=[{"path": "/a", "url": "s3://a/b"}])
    assert tes.ended(failed)["state"] == "EXECUTOR_ERROR"
    assert tes.ended(unknown)["state"] == "SYSTEM_ERROR"


def test_a_cancelled_task_is_canceled(tes: Tes) -> None:
    task = tes.create(["sleep", "1000"])
    wait_for(lambda: tes.state(task) == "RUNNING", "the task")
    assert tes.ask("POST", f"/tasks/{task}:cancel").json() == {}
    assert tes.ended(task)["state"] == "CANCELED"


def test_lists_have_pages_and_filters(tes: Tes) -> None:
    tasks = [tes.create(["true"], name=f"listed-{i}", tags={"n": str(i)}) for i in range(3)]
    for task in tasks:
        tes.ended(task)
    first = tes.get("/tasks?page_size=2&name_prefix=listed&view=BASIC", "tes-tasks")
    assert [each["id"] for each in first["tasks"]] == tasks[:0:-1]
    token = first["next_page_token"]
    rest = tes.get(f"/tasks?page_size=2&name_prefix=listed&page_token={token}", "tes-tasks")
    assert rest == {"tasks": [{"id": tasks[0], "state": "COMPLETE"}]}
    tagged = tes.get("/tasks?tag_key=n&tag_value=1&state=COMPLETE", "tes-tasks")
    assert [each["id"] for each in tagged["tasks"]] == [tasks[1]]
    assert tes.get("/tasks?name_prefix=listed&state=RUNNING", "tes-tasks") == {"tasks": []}


def test_a_wrong_request_is_answered_with_the_field(tes: Tes) -> None:
    told = tes.ask("POST", "/tasks", {"executors": [{"image": "x", "command": "echo"}]})
    assert (told.status, told.json()["error"][:21]) == (400, "executors[0].command:")
    assert tes.ask("GET", "/tasks?view=ALL").status == 400
    assert tes.ask("GET", "/tasks/none").status == 404
    assert tes.ask("POST", "/tasks/none:cancel").status == 404


def test_the_service_describes_itself(tes: Tes) -> None:
    info = tes.get("/service-info", "tes-service-info")
    assert info["type"] == {"group": "org.ga4gh", "artifact": "tes", "version": "1.1.0"}


def test_a_job_that_is_no_task_of_tes_is_not_found(tes: Tes) -> None:
    one = {"executor": "stdinout", "arguments": {"args": {"command_line": ["true"]}}}
    told = tes.door.ask_as(Role.SUBMIT, "POST", "/api/v1/jobs", {"tasks": [one]})
    job = told.json()["job"]["id"]
    assert tes.ask("GET", f"/tasks/{job}").status == 404
    listed = tes.get("/tasks?page_size=2000", "tes-tasks")["tasks"]
    assert job not in [each["id"] for each in listed]


def test_a_restarted_master_knows_its_tasks(tes: Tes) -> None:
    home = tes.cluster.home
    task = tes.create(["echo", "kept"], name="kept")
    before = tes.ended(task)
    assert home.run("ciel", "master", "restart").returncode == 0
    wait_for(lambda: tes.ask("GET", f"/tasks/{task}").status == 200, "the restarted master")
    after = tes.ended(task)
    for each in (before, after):
        del each["creation_time"]  # the clock of the new master differs by a millisecond
    assert after == before
