"""Drives a cluster over HTTP alone: as the original's programs do, through `/api/v1`, and through
the HTML pages.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from ciel.access.keys import Role
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel_tests.documents.schemas import Schemas
from ciel_tests.http.routes import Door, Told

READ, SUBMIT = Role.READ, Role.SUBMIT
WAITERS = 40  # the original had trouble with more than ten


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    home = Home(tmp_path_factory.mktemp("http"))
    cluster = HandCluster.start(home, 2)
    yield cluster
    cluster.stop()


@pytest.fixture
def door(cluster: HandCluster) -> Door:
    return Door(cluster.url.removeprefix("http://"), cluster.key)


class Client:
    """A client that submits a job as those of the original CIEL did, with JSON, not pickle."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def put(self, content: bytes) -> Any:
        """Post data to the master, which redirects to a worker; return the reference."""
        told = self.door.ask("POST", "/control/data/", self.door.key_of(SUBMIT), content)
        assert told.status == 307
        place = urlsplit(told.headers["location"])
        worker = Door(place.netloc, self.door.key_of(SUBMIT))
        told = worker.ask("POST", place.path, self.door.key_of(SUBMIT), content)
        assert told.status == 201
        return told.json()

    def run(self, private: Any, *dependencies: Any, **options: Any) -> Any:
        """Start a job with an `init` task and wait for its end; return its description."""
        root = {"handler": "init", "dependencies": [*dependencies], "task_private": private}
        body = {"root_task": root, "job_options": options}
        told = self.door.ask_as(SUBMIT, "POST", "/control/job/", body)
        assert told.status == 200, told
        job = told.json()["job_id"]
        return self.door.ask_as(READ, "GET", f"/control/job/{job}/completion").json()

    def listed(self, described: Any) -> Any:
        """Read the list of references that is the result of a job."""
        return json.loads(b64decode(described["result_ref"]["__ref__"][2]))


@pytest.fixture
def client(door: Door) -> Client:
    return Client(door)


def content_of(reference: Any) -> bytes:
    assert reference["__ref__"][0] == "val"
    return b64decode(reference["__ref__"][2])


def begin(door: Door, *tasks: dict[str, Any], **more: Any) -> Any:
    told = door.ask_as(SUBMIT, "POST", "/api/v1/jobs", {"tasks": list(tasks), **more})
    assert told.status == 201, told
    assert told.headers["location"] == f"/api/v1/jobs/{told.json()['job']['id']}"
    return told.json()


def program(name: str, *command: Any, inputs: Any = (), **more: Any) -> dict[str, Any]:
    args: dict[str, Any] = {"command_line": list(command), "inputs": list(inputs)}
    return {"name": name, "executor": "stdinout", "arguments": {"args": args}, **more}


def get(door: Door, target: str) -> Any:
    told = door.ask_as(READ, "GET", target)
    assert told.status == 200, told
    return told.json()


# --- the original's steps -------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["short", "long"])
def test_the_originals_steps_run_a_package(client: Client, size: str) -> None:
    """The data and the description of the task are inline, or stored on a worker."""
    text = b"b\na\n" if size == "short" else b"".join(b"%05d\n" % (9999 - n) for n in range(5000))
    words = client.put(text)
    assert words["__ref__"][0] == ("val" if size == "short" else "c2")
    package = client.put(json.dumps({"words": words}).encode())
    padding = "x" * (10 if size == "short" else 2000)
    private = {
        "package_ref": package,
        "start_handler": "stdinout",
        "start_args": {"command_line": ["sort"], "inputs": [words], "padding": padding},
    }
    described = client.run(client.put(json.dumps(private).encode()), package, words)
    assert described["state"] == "COMPLETED"
    assert described["task_counts"]["COMMITTED"] == 3
    (result,) = client.listed(described)
    expected = b"".join(sorted(text.splitlines(keepends=True)))
    job, name = described["job_id"], result["__ref__"][1]
    known = get(client.door, f"/control/ref/{job}/{name}")
    if size == "short":
        assert content_of(known) == expected
    told = client.door.ask_as(READ, "GET", f"/data/{name}")
    if size == "long":
        assert told.status == 307
        place = urlsplit(told.headers["location"])
        assert place.netloc in known["__ref__"][3]
        told = Door(place.netloc, client.door.key_of(READ)).ask_as(READ, "GET", place.path)
    assert (told.status, told.body) == (200, expected)


def test_an_error_is_the_result_of_a_job_in_the_originals_format(client: Client) -> None:
    private = {"start_handler": "stdinout", "start_args": {"command_line": ["false"]}}
    described = client.run(private, scheduler="random", journal=True)
    assert described["state"] == "FAILED"
    assert described["job_options"] == {"scheduler": "random", "sched_opts": {}}
    (result,) = client.listed(described)
    known = get(client.door, f"/control/ref/{described['job_id']}/{result['__ref__'][1]}")
    assert known["__ref__"][0] == "err"


BAD_ROOTS: dict[str, Any] = {
    "nothing": ({}, "root_task: it must be an object that describes what to run"),
    "no handler": ({"task_private": {}}, "root_task.handler: it must be the name of an executor"),
    "no data": ({"handler": "init"}, "task_private: it must be an object, or a reference"),
    "no start": ({"handler": "init", "task_private": {}}, "'start_handler'"),
    "data that is text": ({"handler": "a", "task_private": "x"}, "task_private: it must be"),
    "a pickle": (
        {"handler": "a", "task_private": {"__ref__": ["val", "x", b64encode(b"\x80.").decode()]}},
        "not UTF-8",
    ),
    "no base64": (
        {"handler": "a", "task_private": {"__ref__": ["val", "x", "?"]}}, "is not base64"
    ),
    "data nobody has": (
        {"handler": "a", "task_private": {"__ref__": ["c2", "x", 1, ["127.0.0.1:1"]]}},
        "no connected worker has x",
    ),
    "an unknown key": ({"handler": "a", "task_private": {}, "colour": 1}, "colour: unknown"),
    "dependencies": (
        {"handler": "a", "task_private": {}, "dependencies": ["x"]},
        "one of them is not a reference",
    ),
    "an id that is none": (
        {"handler": "a", "task_private": {}, "expected_outputs": ["../x"]}, "'../x' is not an id"
    ),
    "an output twice": (
        {"handler": "a", "task_private": {}, "expected_outputs": ["x", "x"]},
        "a list contains an id twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("root, said", BAD_ROOTS.values(), ids=BAD_ROOTS)
def test_an_invalid_root_task_is_refused(door: Door, root: Any, said: str) -> None:
    before = get(door, "/control/job")
    body = {"root_task": root} if root else {}
    told = door.ask_as(SUBMIT, "POST", "/control/job", body)
    assert told.status in (400, 404)
    assert said in told.error
    assert get(door, "/control/job") == before


def test_job_ids_may_be_as_long_as_their_limit(door: Door) -> None:
    plain = {"handler": "sync", "task_private": {"args": {"inputs": []}}}
    given = plain | {"expected_outputs": ["o"]}
    for length, root, status, most in (
        (117, plain, 200, 0), (118, plain, 400, 117), (128, plain, 400, 117),
        (123, given, 200, 0), (124, given, 400, 123), (128, given, 400, 123),
    ):  # fmt: skip
        job = "j" * length
        told = door.ask_as(SUBMIT, "POST", f"/control/job/{job}", {"root_task": root})
        assert told.status == status, told
        if status == 400:
            assert f"it has {length} characters, but may have {most}: " in told.error
        assert (job in get(door, "/control/job")) is (status == 200)
        if status == 200:
            again = door.ask_as(SUBMIT, "POST", f"/control/job/{job}", {"root_task": root})
            assert again.status == 409


def test_any_number_of_clients_may_wait_for_a_job(door: Door, client: Client) -> None:
    gate = client.door
    begun = begin(gate, program("wait", "sleep", "1000"))["job"]["id"]
    target = f"/control/job/{begun}/completion"
    soon = door.ask_as(READ, "POST", target, {"timeout": 0.01})
    assert (soon.status, soon.json()) == (200, False)
    with ThreadPoolExecutor(WAITERS) as pool:
        waits = [pool.submit(door.ask_as, READ, "GET", target) for _ in range(WAITERS - 2)]
        waits.append(pool.submit(door.ask_as, READ, "POST", target, {"timeout": 1000}))
        own = f"/api/v1/jobs/{begun}?wait_s=1000"
        waits.append(pool.submit(door.ask_as, READ, "GET", own))
        wait_for(lambda: waiting(door) == WAITERS, "all of them")
        hung_up = http.client.HTTPConnection(door.netloc, timeout=10)
        hung_up.request("GET", target, headers={"Authorization": f"Bearer {door.key_of(READ)}"})
        wait_for(lambda: waiting(door) == WAITERS + 1, "one more")
        hung_up.close()
        wait_for(lambda: waiting(door) == WAITERS, "one less")
        told = door.ask_as(SUBMIT, "POST", f"/api/v1/jobs/{begun}/cancel")
        assert told.json()["state"] in ("cancelling", "cancelled")
        answers = [wait.result() for wait in waits]
    states = [told.json()["state"] for told in answers[:-2]]
    assert states == ["CANCELLED"] * (WAITERS - 2)
    assert answers[-2].json() is True
    assert answers[-1].json()["state"] == "cancelled"
    assert waiting(door) == 0


def figures(door: Door) -> dict[str, float]:
    """Read the metrics as Prometheus does."""
    told = door.ask_as(READ, "GET", "/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in told.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def waiting(door: Door) -> float:
    return figures(door)["ciel_http_waiting"]


@pytest.mark.slow
def test_a_client_that_waits_for_workers_is_answered_when_one_joins(
    cluster: HandCluster, door: Door
) -> None:
    known = get(door, "/control/worker/versioned")
    assert len(known["workers"]) == 2
    target = f"/control/worker/await_event_count?version={known['version']}"
    answers: list[Told] = []
    thread = threading.Thread(target=lambda: answers.append(door.ask_as(READ, "POST", target)))
    thread.start()
    wait_for(lambda: waiting(door) == 1, "who waits")
    worker = cluster.start_worker()
    thread.join(60)
    assert answers[0].json()["current_version"] > known["version"]
    assert len(get(door, "/control/worker")) == 3
    cluster.workers.remove(worker)
    worker.terminate()
    worker.communicate(timeout=10)
    wait_for(lambda: figures(door)["ciel_workers"] == 2, "its loss")
    assert figures(door)["ciel_workers_lost_total"] >= 1


# --- /api/v1 --------------------------------------------------------------------------------------


def test_tasks_of_one_body_read_each_others_outputs(door: Door) -> None:
    begun = begin(
        door,
        program("numbers", "seq", "3"),
        program("words", "echo", "x"),
        program(
            "all", "cat", inputs=[{"__output__": "numbers"}, {"__output__": ["words", 0]}],
            needs={"slots": 1, "retries": 2, "retry_on": ["WORKER_LOST"], "timeout_s": 60},
        ),
        name="three", scheduling={"policy": "tworandom"},
    )  # fmt: skip
    job = begun["job"]["id"]
    told = get(door, f"/api/v1/jobs/{job}?wait_s=100")
    assert (told["state"], told["wanted"], told["counts"]) == ("completed", 1, {"done": 3})
    assert told["created_at_s"] == pytest.approx(time.time(), abs=60)
    (result,) = get(door, f"/api/v1/jobs/{job}/results")["results"]
    assert (result["name"], content_of(result["reference"])) == ("all", b"1\n2\n3\nx\n")
    rows = get(door, f"/api/v1/jobs/{job}/tasks?state=done")["tasks"]
    assert [row["name"] for row in rows] == ["numbers", "words", "all"]
    assert get(door, f"/api/v1/jobs/{job}/tasks/all")["needs"]["retries"] == 2
    described = get(door, f"/api/v1/objects/{begun['outputs']['all'][0]}")
    assert (described["state"], described["job"]) == ("there", told["number"])
    assert door.ask_as(SUBMIT, "DELETE", f"/api/v1/jobs/{job}").status == 200
    assert door.ask_as(READ, "GET", f"/api/v1/jobs/{job}").status == 404
    assert door.ask_as(READ, "GET", f"/data/{begun['outputs']['all'][0]}").status == 404


def test_objects_named_by_a_result_stay_as_long_as_its_job(door: Door, home: Home) -> None:
    page = home.path / "page"
    page.write_bytes(b"a page " * 1000)
    task = {"name": "g", "executor": "grab", "arguments": {"args": {"urls": [page.as_uri()]}}}
    job = begin(door, task)["job"]["id"]
    get(door, f"/api/v1/jobs/{job}?wait_s=100")
    (result,) = get(door, f"/api/v1/jobs/{job}/results")["results"]
    fetched = json.loads(content_of(result["reference"]))["__ref__"][1]
    told = door.ask_as(READ, "GET", f"/data/{fetched}")
    assert (told.status, get(door, f"/api/v1/objects/{fetched}")["state"]) == (307, "there")


def test_answers_match_the_schemas(door: Door) -> None:
    schemas = Schemas()
    body = {
        "name": "shown",
        "tasks": [
            program("good", "seq", "1000", outputs=1, needs={"priority": 1}),
            program("bad", "false", inputs=[{"__output__": ["good", 0]}]),
        ],
        "want": ["good", ["bad", 0]],
        "scheduling": {"policy": "locality", "options": {"sweetheart_factor": 2}},
    }
    schemas.check("http-submission", body)
    begun = door.ask_as(SUBMIT, "POST", "/api/v1/jobs", body).json()
    schemas.check("http-begun", begun)
    job = f"/api/v1/jobs/{begun['job']['id']}"
    schemas.check("http-job", get(door, f"{job}?wait_s=100"))
    schemas.check("http-jobs", get(door, "/api/v1/jobs"))
    schemas.check("http-tasks", get(door, f"{job}/tasks"))
    for name in ("good", "bad"):
        schemas.check("http-task", get(door, f"{job}/tasks/{name}"))
    schemas.check("http-results", get(door, f"{job}/results"))
    schemas.check("http-object", get(door, f"/api/v1/objects/{begun['outputs']['good'][0]}"))
    for name in ("objects", "workers", "status", "stores"):
        schemas.check(f"http-{name}", get(door, f"/api/v1/{name}"))
    schemas.check("http-error", door.ask_as(READ, "GET", "/api/v1/jobs/none").json())


def test_a_long_body_is_accepted_as_a_job(door: Door) -> None:
    """The master parses it in a thread."""
    tasks = [program(f"task {number}", "true", "x" * 200) for number in range(100)]
    begun = begin(door, *tasks, want=["task 17"])
    assert len(begun["outputs"]) == 100
    told = get(door, f"/api/v1/jobs/{begun['job']['id']}?wait_s=100")
    assert told["counts"] == {"dormant": 99, "done": 1}
    bad = door.ask_as(SUBMIT, "POST", "/api/v1/jobs", {"tasks": [*tasks, 1]})
    assert (bad.status, bad.error) == (400, "tasks[100]: a task must be an object")
    cut = door.ask("POST", "/api/v1/jobs", door.key_of(SUBMIT), b"[" * 20_000)
    assert (cut.status, cut.error) == (400, "the body: JSON is nested too deeply")


@pytest.mark.parametrize(
    "method, target",
    [("GET", "/healthz"), ("GET", "/api/v1/jobs"), ("POST", "/control/job/last/completion")],
)
def test_the_body_of_a_read_request_is_limited(door: Door, method: str, target: str) -> None:
    told = door.ask_as(Role.READ, method, target, {"timeout": ["long"] * 4000})
    assert (told.status, told.error) == (413, "the body may have at most 16384 bytes")


def test_a_failed_job_can_be_retried(cluster: HandCluster, door: Door) -> None:
    path = str(cluster.home.path / "there")
    twice = {"retries": 1, "retry_delay_s": 0.01}
    job = begin(door, program("look", "cat", path, needs=twice))["job"]["id"]
    assert get(door, f"/api/v1/jobs/{job}?wait_s=100")["state"] == "failed"
    history = get(door, f"/control/task/{job}/look")["history"]
    assert history
    assert all(abs(at_s - time.time()) < 60 and "failed" in text for at_s, text in history)
    (cluster.home.path / "there").write_text("now it is")
    again = door.ask_as(SUBMIT, "POST", f"/api/v1/jobs/{job}/retry")
    assert (again.status, again.json()["state"]) == (200, "active")
    assert get(door, f"/api/v1/jobs/{job}?wait_s=100")["state"] == "completed"
    for _ in range(2):  # a job that did not fail cannot be retried
        told = door.ask_as(SUBMIT, "POST", f"/control/job/{job}/resume")
        assert told.status == 409


def test_lists_are_sent_in_pages(door: Door) -> None:
    begun = [begin(door, program("", "true"))["job"] for _ in range(5)]
    for job in begun:
        get(door, f"/api/v1/jobs/{job['id']}?wait_s=100")
    numbers = [job["number"] for job in begun]
    page = get(door, "/api/v1/jobs?limit=2")
    seen = [job["number"] for job in page["jobs"]]
    while page["next"] is not None and len(seen) < 5:
        page = get(door, f"/api/v1/jobs?limit=2&before={page['next']}")
        seen += [job["number"] for job in page["jobs"]]
    assert seen[:5] == numbers[::-1]
    for query in ("limit=x", "limit=-1", "limit=1001", "before=1e3", "state=old", f"limit={9**99}"):
        assert door.ask_as(READ, "GET", f"/api/v1/jobs?{query}").status == 400
    failed = get(door, "/api/v1/jobs?state=failed&limit=1000")["jobs"]
    assert {job["state"] for job in failed} <= {"failed"}


BAD_JOBS: dict[str, Any] = {
    "no tasks": ({"tasks": []}, "tasks: it must be a list of 1 to 1000 tasks"),
    "too many": ({"tasks": [{}] * 1001}, "tasks: it must be a list of 1 to 1000 tasks"),
    "no task": ({"tasks": ["true"]}, "tasks[0]: a task must be an object"),
    "an unknown key": ({"tasks": [{"exec": "a"}]}, "tasks[0].exec: unknown key; a task has"),
    "no executor": ({"tasks": [{"arguments": {}}]}, "tasks[0].executor: it must be the name"),
    "no arguments": ({"tasks": [{"executor": "a"}]}, "tasks[0].arguments: it must be an object"),
    "outputs": ({"tasks": [program("", "a", outputs=10001)]}, "tasks[0].outputs: it must be 1 to"),
    "too many objects": (
        {"tasks": [program("a", "a"), program("b", "b", outputs=5000)]},
        "tasks[1]: the tasks up to this one name more than 5000 objects: submit several jobs",
    ),
    "a name twice": (
        {"tasks": [program("a", "a")] * 2}, "tasks[1].name: another task has this name"
    ),
    "a long name": ({"tasks": [program("a" * 301, "a")]}, "at most 300 characters"),
    "nobody's output": (
        {"tasks": [program("a", {"__output__": "b"})]}, "no earlier task is called 'b'"
    ),
    "no such output": (
        {"tasks": [program("a", "a"), program("b", {"__output__": ["a", 1]})]}, "a has 1 outputs"
    ),
    "needs": (
        {"tasks": [program("", "a", needs={"slots": "1"})]}, "slots: it must be a whole number"
    ),
    "resources": (
        {"tasks": [program("", "a", needs={"resources": {"gpu": 1e-5}})]},
        "resources: it is wrong: gpu: 1e-05 has more than 4 decimal places",
    ),
    "where": (
        {"tasks": [program("", "a", needs={"where": "zone=b or"})]},
        "where: the name of a label is expected, at character 10",
    ),
    "too much": ({"tasks": [program("", "a", needs={"slots": 2000})]}, "slots must be 1 to 1024"),
    "more needs": (
        {"tasks": [program("", "a", needs={"luck": 1})]}, "luck: unknown key; the keys are slots"
    ),
    "kinds": ({"tasks": [program("", "a", needs={"retry_on": "x"})]}, "must be a list of strings"),
    "want": ({"tasks": [program("a", "a")], "want": ["b"]}, "want: no earlier task is called 'b'"),
    "no want": ({"tasks": [program("a", "a")], "want": []}, "want: it must be a list"),
    "a policy": (
        {"tasks": [program("a", "a")], "scheduling": {"policy": "luck"}}, "unknown policy"
    ),
    "no policy": ({"tasks": [program("a", "a")], "scheduling": 1}, "scheduling: it must be"),
    "a deep name": ({"tasks": [program("a", "a")], "name": {"a": 1}}, "name: it must be a string"),
    "keep": ({"tasks": [program("a", "a")], "keep": 1}, "keep: it must be true or false"),
    "copies": ({"tasks": [program("a", "a")], "copies": 9}, "copies: it must be 1 to 8"),
    "a bad reference": ({"tasks": [program("a", {"__ref__": ["val", "../x", ""]})]}, "not an id"),
}  # fmt: skip


@pytest.mark.parametrize("body, said", BAD_JOBS.values(), ids=BAD_JOBS)
def test_an_invalid_job_is_refused_and_leaves_nothing(door: Door, body: Any, said: str) -> None:
    before = figures(door)
    told = door.ask_as(SUBMIT, "POST", "/api/v1/jobs", body)
    assert told.status == 400
    assert said in told.error
    after = figures(door)
    for name in ('ciel_tasks{state="dormant"}', 'ciel_jobs{state="active"}', "ciel_objects"):
        assert after[name] == before[name]


def test_metrics_count_jobs_attempts_and_objects(door: Door) -> None:
    before = figures(door)
    job = begin(door, program("a", "true"), program("b", "false"))["job"]["id"]
    get(door, f"/api/v1/jobs/{job}?wait_s=100")
    after = figures(door)

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("ciel_jobs_total") == 1
    assert grown('ciel_jobs{state="failed"}') == 1
    assert grown('ciel_attempts_total{ending="done"}') == 1
    assert grown('ciel_attempts_total{ending="failed"}') == 1
    assert grown("ciel_objects") == 2
    assert after["ciel_workers"] == 2
    assert after["process_open_fds"] > 5
    door.ask_as(SUBMIT, "DELETE", f"/api/v1/jobs/{job}")
    assert figures(door)['ciel_jobs{state="failed"}'] == before['ciel_jobs{state="failed"}']
    assert figures(door)['ciel_tasks{state="failed"}'] == before['ciel_tasks{state="failed"}']


# --- HTML pages -----------------------------------------------------------------------------------


def test_pages_link_to_each_other_and_escape_html_of_users(door: Door) -> None:
    evil = "<script>alert('x')</script>&\"'"
    begun = begin(door, program(evil, "sh", "-c", f'echo "{evil}" >&2; exit 3'), name=evil)
    get(door, f"/api/v1/jobs/{begun['job']['id']}?wait_s=100")
    seen = [""]
    todo = ["/control/browse/job/"]
    while todo and len(seen) < 30:
        target = todo.pop()
        told = door.ask_as(READ, "GET", target)
        assert told.status == 200, target
        assert told.headers["content-type"] == "text/html; charset=utf-8"
        assert told.headers["content-security-policy"].startswith("default-src 'none'")
        page = told.body.decode()
        assert "<script" not in page
        seen.append(page)
        todo += [link for link in re.findall('href="(/[^"]*)"', page) if begun["job"]["id"] in link]
        todo = [link for link in dict.fromkeys(todo) if link != target][:10]
        if len(seen) > 12:
            break
    assert "&lt;script&gt;" in "".join(seen)
    assert any("<h2>results</h2>" in page for page in seen)
    assert any("<h2>inputs</h2>" in page for page in seen)
    assert any("produced by" in page for page in seen)


def test_healthz_may_be_open_to_everyone(home: Home) -> None:
    access = home.path / "access.json"
    master = home.start(
        "ciel-master", "--listen", "127.0.0.1:0", "--access", str(access), "--open-healthz"
    )
    try:
        wait_for(access.exists, "the master")
        netloc = json.loads(access.read_text())["url"].removeprefix("http://")
        with closing(http.client.HTTPConnection(netloc, timeout=10)) as connection:
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, {"status": "ok"})
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 401
    finally:
        master.terminate()
        master.communicate(timeout=10)


# --- requests that are repeated -------------------------------------------------------------------


def post_with_key(door: Door, key: str, *tasks: dict[str, Any]) -> Told:
    body = json.dumps({"tasks": list(tasks)}).encode()
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return door.ask("POST", "/api/v1/jobs", door.key_of(SUBMIT), body, headers)


@pytest.mark.slow
def test_a_request_that_is_repeated_because_its_answer_was_lost_starts_one_job(door: Door) -> None:
    before = get(door, "/api/v1/jobs")["total"]
    for number in range(100):
        task = program("out", "echo", str(number))
        cut_off = json.dumps({"tasks": [task]}).encode()
        with closing(http.client.HTTPConnection(door.netloc, timeout=20)) as connection:
            connection.request(
                "POST", "/api/v1/jobs", cut_off,
                {"Authorization": f"Bearer {door.key_of(SUBMIT)}", "Idempotency-Key": f"k{number}",
                 "Content-Type": "application/json"},
            )  # fmt: skip
        again = post_with_key(door, f"k{number}", task)
        assert again.status in (200, 201), again  # 201: the cut came before the job
        last = post_with_key(door, f"k{number}", task)
        assert (last.status, last.json()["outputs"]) == (200, again.json()["outputs"])
        assert last.headers["location"] == again.headers["location"]
    assert get(door, "/api/v1/jobs")["total"] == before + 100


def test_a_key_stands_for_one_job(door: Door) -> None:
    assert post_with_key(door, "mine", program("a", "true")).status == 201
    other = post_with_key(door, "mine", program("a", "false"))
    assert (other.status, "Idempotency-Key" in other.error) == (409, True)
    assert post_with_key(door, "x" * 256, program("a", "true")).status == 400
