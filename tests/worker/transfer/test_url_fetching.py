"""Tests fetch sessions, which fetch URLs from a real site into a real store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Fetch
from ciel.net.url_policy import UrlPolicy
from ciel.storage.files import FileStore
from ciel.testing.homes import wait_for
from ciel.worker.transfer import url_fetching
from ciel.worker.transfer.url_fetching import FetchRefusedError, UrlFetching

CONTENT = bytes(range(256)) * 1000


class Answer(BaseHTTPRequestHandler):
    """Serves `/good`, half of `/half`, and nothing else; it answers `/held` once the test allows
    it.
    """

    held = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/held":
            self.held.wait(10)
        good = self.path in ("/good", "/half", "/held")
        self.send_response(200 if good else 404)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        with suppress(OSError):  # the client has disconnected
            self.wfile.write(CONTENT[:1000] if self.path == "/half" else CONTENT)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Fetching:
    """The fetch sessions of a worker, on the reactor."""

    def __init__(self, run: Any, store: FileStore, policy: UrlPolicy) -> None:
        self.run = run
        self.kept: list[str] = []
        self.urls = run(UrlFetching, run.reactor, store, policy, "127.0.0.1:1", self.kept.append)

    def start(self, name: str, **urls: str) -> None:
        self.run(self.urls.start, name, [Fetch(ObjectId(i), url) for i, url in urls.items()])

    def end(self, name: str) -> dict[str, Any]:
        def facts() -> dict[str, Any]:
            found: dict[str, Any] = self.run(self.urls.facts, name)
            return found

        wait_for(lambda: facts()["state"] != "running", "the end of a session")
        return facts()


@pytest.fixture
def fetching(in_reactor: Any, store: FileStore) -> Iterator[Fetching]:
    fetching = Fetching(in_reactor, store, UrlPolicy.ANY)
    yield fetching
    in_reactor(fetching.urls.close)


def test_urls_become_objects_that_are_kept(fetching: Fetching, store: FileStore, url: str) -> None:
    fetching.start("s", a=f"{url}/good", b=f"{url}/good")
    facts = fetching.end("s")
    assert (facts["state"], facts["fetched"], facts["failures"]) == ("done", 2, [])
    assert sorted(ref["__ref__"][1] for ref in facts["refs"]) == ["a", "b"]
    assert sorted(fetching.kept) == sorted(store) == ["a", "b"]
    assert store.get("a") == CONTENT


def test_what_cannot_be_had_is_said_and_leaves_nothing(
    fetching: Fetching, store: FileStore, url: str
) -> None:
    fetching.start("s", a=f"{url}/none", b=f"{url}/half", c=f"{url}/good", d="http://127.0.0.1:1/")
    facts = fetching.end("s")
    assert (facts["state"], facts["fetched"], facts["failed"]) == ("failed", 1, 3)
    said = {failure["id"]: failure["error"] for failure in facts["failures"]}
    assert "(HTTP 404)" in said["a"]
    assert "the body ended after 1000 bytes" in said["b"]
    assert said["d"].startswith("http://127.0.0.1:1/: ")
    assert fetching.kept == list(store) == ["c"]


def test_an_object_that_is_there_is_not_fetched_again(
    fetching: Fetching, store: FileStore, url: str
) -> None:
    store.put("a", b"x" * 2000)
    fetching.start("s", a=f"{url}/none")
    assert fetching.end("s")["refs"] == [{"__ref__": ["c2", "a", 2000, ["127.0.0.1:1"]]}]
    assert fetching.kept == ["a"]


def test_an_empty_session_is_done(fetching: Fetching) -> None:
    fetching.start("s")
    assert fetching.end("s")["state"] == "done"


def test_a_second_fetch_session_needs_another_name(fetching: Fetching, url: str) -> None:
    Answer.held.clear()
    fetching.start("s", a=f"{url}/held")
    with pytest.raises(FetchRefusedError, match="the fetch session s exists already"):
        fetching.start("s", b=f"{url}/good")
    assert fetching.run(fetching.urls.facts, "s")["state"] == "running"
    Answer.held.set()
    assert fetching.end("s")["state"] == "done"


def test_the_oldest_ended_fetch_session_makes_room(
    fetching: Fetching, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_fetching, "SESSIONS_MAX", 2)
    Answer.held.clear()
    fetching.start("running", a=f"{url}/held")
    fetching.start("over")
    fetching.start("third", b=f"{url}/held")
    assert [row["session"] for row in fetching.run(fetching.urls.rows)] == ["running", "third"]
    with pytest.raises(FetchRefusedError, match="this worker runs 2 fetch sessions"):
        fetching.start("fourth")
    Answer.held.set()
    fetching.end("running")
    fetching.end("third")


def test_nothing_is_fetched_if_one_url_is_refused(
    fetching: Fetching, store: FileStore, url: str
) -> None:
    with pytest.raises(FetchRefusedError) as caught:
        fetching.start("s", a=f"{url}/good", b="file:///etc/passwd")
    assert caught.value.status == 400
    assert fetching.run(fetching.urls.rows) == []


def test_a_worker_that_fetches_no_urls_says_what_to_do(
    in_reactor: Any, store: FileStore, url: str
) -> None:
    fetching = Fetching(in_reactor, store, UrlPolicy.OFF)
    with pytest.raises(FetchRefusedError, match="start it with --fetch-urls https"):
        fetching.start("s", a=f"{url}/good")
    in_reactor(fetching.urls.close)


def test_what_is_under_way_fails_when_the_worker_ends(
    in_reactor: Any, store: FileStore, url: str
) -> None:
    Answer.held.clear()
    fetching = Fetching(in_reactor, store, UrlPolicy.ANY)
    fetching.start("s", **{f"a{number}": f"{url}/held" for number in range(20)})
    in_reactor(fetching.urls.close)
    facts = fetching.end("s")
    assert (facts["fetched"], facts["failed"]) == (0, 20)
    Answer.held.set()
