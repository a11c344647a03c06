"""Tests packages on a cluster of two workers: where their inputs are stored, and the loss of a
worker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ciel.cli.jobs.queries import list_jobs
from ciel.client import Client
from ciel.testing.homes import HandCluster, Home, wait_for

SIZES = """
include "stdinout";
begun = *stdinout([], ["sh", "-c", "touch $1; while [ ! -e $2 ]; do sleep 0.05; done; echo 1",
                       "wait", env["BEGUN"], env["GO"]]);
sizes = [];
for (key in ["blocks", "files", "web"]) {
    for (piece in *package(key)) {
        sizes += stdinout([piece], ["wc", "-c"]);
    }
}
sizes += stdinout([package("whole")], ["wc", "-c"]);
found = [];
for (size in sizes) { found += *size; }
return found;
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    cluster = HandCluster.start(Home(tmp_path_factory.mktemp("packages")), 2)
    yield cluster
    cluster.stop()
    assert not cluster.home.processes()


@pytest.fixture
def url(cluster: HandCluster) -> Iterator[str]:
    """Return the URL of a server of the home's files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(cluster.home.path)))
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def write(cluster: HandCluster) -> Callable[[str, Any], Path]:
    def write(name: str, content: Any) -> Path:
        path = cluster.home.path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    return write


@pytest.mark.parametrize("command", [("ciel", "run", "web.pack"), ("sw-job", "web.sw")])
def test_a_url_that_cannot_be_fetched_fails_the_job(
    cluster: HandCluster, url: str, write: Callable[[str, Any], Path], command: tuple[str, ...]
) -> None:
    write("there", "x")
    write("web.sw", "return 1;")
    start = {"handler": "stdinout", "args": {"command_line": ["true"]}}
    urls = [f"{url}/{name}" for name in ("absent", "there")]
    write("web.pack", {"package": {"web": {"urls": urls}}, "start": start})
    done = cluster.home.run(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{url}/absent could not be fetched: the server answered 404" in done.stderr
    with Client(environ=cluster.home.environ) as client:
        assert list_jobs(client)[-1].state == "failed"


def test_a_package_may_wait_for_an_object_of_another_job_but_not_for_an_unknown_one(
    cluster: HandCluster, write: Callable[[str, Any], Path]
) -> None:
    args = {"command_line": ["cat", {"__package__": "k"}]}
    package: dict[str, Any] = {
        "start": {"handler": "stdinout", "args": args},
        "result": [{"__decode_ref__": "noop"}],
    }
    with Client(environ=cluster.home.environ) as client, client.job() as job:
        made = job.run(["echo", "made"])
        job.want([made])
        write("wait.pack", package | {"package": {"k": {"__ref__": ["f2", made.id]}}})
        done = cluster.home.run("ciel", "run", "wait.pack")
        assert (done.returncode, done.stdout, done.stderr) == (0, '["made\\n"]\n', "")
    write("wait.pack", package | {"package": {"k": {"__ref__": ["f2", "nothing"]}}})
    done = cluster.home.run("ciel", "run", "wait.pack")
    said = "ciel: wait.pack:19: package.k: no known task produces object nothing\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.slow
def test_inputs_of_a_package_survive_the_loss_of_a_worker(
    cluster: HandCluster, url: str, write: Callable[[str, Any], Path]
) -> None:
    home = cluster.home
    begun, go = home.path / "begun", home.path / "go"
    write("sizes.sw", SIZES)
    for name, size in (("a", 3000), ("b", 5000), ("c", 7000), ("d", 9000)):
        write(name, "x" * size)
    write("names", "a\nb\n")
    package = {
        "package": {
            "script": {"filename": "sizes.sw"},
            "whole": {"filename": "a"},
            "blocks": {"filename": "d", "index": True, "block_size": 4000},
            "files": {"filenamelist": "names"},
            "web": {"urls": [f"{url}/{name}" for name in "bc"]},
        },
        "start": {
            "handler": "swi",
            "args": {
                "sw_file_ref": {"__package__": "script"},
                "start_env": {"BEGUN": str(begun), "GO": str(go)},
            },
        },
        "result": [{"__decode_ref__": "json"}],
    }
    running = home.start("ciel", "run", "--quiet", str(write("sizes.pack", package)))
    wait_for(begun.exists, "the script")
    cluster.workers[0].kill()
    cluster.workers[0].communicate(timeout=20)
    go.write_text("")
    printed, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (0, "")
    assert json.loads(printed) == [[4000, 4000, 1000, 3000, 5000, 5000, 7000, 3000]]
    cluster.start_worker()


NOBODY = """
import os
from ciel.executors.sdk import ciel_task

def run(task):
    mine = ciel_task.Ref({mine})
    [read] = task.spawn("stdinout", args={{"command_line": ["cat"], "inputs": [mine]}})
    task.tail_spawn("stdinout", args={{"command_line": ["cat"], "inputs": [read]}})

ciel_task.serve(run)
"""


@pytest.mark.parametrize(
    "mine, said",
    [
        ('["f2", "nobodys"]', "input nobodys failed (NEVER_MADE): no task of the job produces"),
        ("['f2', os.environ['CIEL_TASK'] + ':out:0']", "(NEVER_MADE): no task of the job produces"),
    ],
    ids=["forged", "circle"],
)
def test_a_child_that_waits_for_an_object_without_producer_fails_the_job(
    cluster: HandCluster, write: Callable[[str, Any], Path], mine: str, said: str
) -> None:
    script = write("nobody.py", NOBODY.format(mine=mine))
    write(
        "nobody.pack",
        {"start": {"handler": "proc", "args": {"command": [sys.executable, str(script)]}}},
    )
    done = cluster.home.run("ciel", "run", "nobody.pack", timeout_s=20)
    assert done.returncode == 1
    assert said in done.stderr
