"""Who may come in: nothing is answered without a key, by any door of a running cluster."""

import http.client
import json
from pathlib import Path

from ciel.access.keys import Key
from ciel.master.resources.root import master_routes
from ciel.net.http import Routes
from ciel.storage.files import open_disk
from ciel.testing.homes import HandCluster, wait_for
from ciel.worker.logs import JobLogs
from ciel.worker.resources import WorkerSite
from ciel.worker.streaming import Streams

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW")


class _Answering:
    def answer(self, topic: str, argument: object) -> object:
        raise AssertionError("nobody without a key is answered")


def paths_of(routes: Routes) -> list[str]:
    """Enumerate a live resource tree, each name in a path standing for something."""
    return [path.replace("{id}", "some:id").replace("{job}", "1") for path, _ in routes]


def status(netloc: str, method: str, path: str, key: str | None = None) -> int:
    connection = http.client.HTTPConnection(netloc, timeout=10)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_route_and_method_answers_401_without_a_key(
    lasting_cluster: HandCluster, tmp_path: Path
) -> None:
    with open_disk({}, tmp_path / "a-store") as store:
        logs = JobLogs(None, tmp_path / "logs")
        worker = WorkerSite(None, Key.new(), store, lambda object_id: None, logs, Streams(None))
        doors = [
            (lasting_cluster.url.removeprefix("http://"), paths_of(master_routes(_Answering())))
        ]
        doors += [(netloc, paths_of(worker.routes)) for netloc in lasting_cluster.netlocs()]
    wrong = Key.new().text()
    asked = 0
    for netloc, paths in doors:
        assert len(paths) >= 4
        for path in [*paths, "/", "/nothing/here", "/data/../x", "*"]:
            for method in METHODS:
                assert status(netloc, method, path) == 401, (netloc, method, path)
                assert status(netloc, method, path, wrong) == 401, (netloc, method, path)
                asked += 1
    assert asked > 200


def test_with_the_key_routes_answer(lasting_cluster: HandCluster) -> None:
    netloc = lasting_cluster.url.removeprefix("http://")
    assert status(netloc, "GET", "/healthz", lasting_cluster.key) == 200
    assert status(netloc, "GET", "/api/v1/status", lasting_cluster.key) == 200
    assert status(netloc, "GET", "/api/v1/jobs/77", lasting_cluster.key) == 404
    assert status(netloc, "POST", "/api/v1/status", lasting_cluster.key) == 405
    assert status(lasting_cluster.netlocs()[0], "GET", "/data/absent", lasting_cluster.key) == 404
    assert status(lasting_cluster.netlocs()[0], "GET", "/data/%2e%2e", lasting_cluster.key) == 400


def test_a_worker_with_a_wrong_key_is_refused_and_both_sides_say_so(
    lasting_cluster: HandCluster,
) -> None:
    home = lasting_cluster.home
    stranger = json.loads(lasting_cluster.access.read_text())
    stranger["key"] = Key.new().text()
    path = home.path / "wrong.json"
    path.write_text(json.dumps(stranger))
    path.chmod(0o600)
    done = home.run("ciel-worker", "--access", str(path))
    assert done.returncode == 3
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ciel-worker:")]
    assert "key" in line
    assert "refused" in line
    assert "Traceback" not in done.stderr
    wait_for(lambda: "does not match" in lasting_cluster.log("master"), "the master's line")


def test_an_access_file_that_others_can_read_is_refused(
    lasting_cluster: HandCluster,
) -> None:
    home = lasting_cluster.home
    lasting_cluster.access.chmod(0o644)
    done = home.run("ciel", "status")
    assert done.returncode == 3
    assert "chmod" in done.stderr
    assert "Traceback" not in done.stderr
    lasting_cluster.access.chmod(0o600)


def test_the_key_is_in_no_log_and_in_no_environment(lasting_cluster: HandCluster) -> None:
    home = lasting_cluster.home
    done = home.run("ciel", "submit", "--", "env")
    assert done.returncode == 0
    everything = done.stdout + done.stderr
    everything += "".join(path.read_text() for path in home.path.glob("*.log"))
    everything += "".join(home.processes().values())
    assert lasting_cluster.key not in everything
    assert "CIEL_ACCESS" not in done.stdout
