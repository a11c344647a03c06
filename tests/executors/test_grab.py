"""The `grab` executor: its arguments, and its program with real servers and a worker."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Reference, Value
from ciel.core.tasks import Mentions
from ciel.execution.executor import BadArgumentsError, ChildForm, Finish, Talk, Task
from ciel.executors.grab import GrabExecutor
from ciel.testing.builders import stored
from ciel.testing.homes import wait_for
from ciel.wire import codec
from ciel.wire.calls import Call, CallReader, encode_call
from ciel.wire.references import from_json

EXECUTOR = GrabExecutor()
WEB = "http://example.org/a"
THERE = "swbs://host:8001/upload:1"


# --- arguments ------------------------------------------------------------------------------------


def begun(task: Callable[..., Task], *urls: str, **more: Any) -> Any:
    outputs = tuple(f"out{i}" for i in range(len(urls)))
    return EXECUTOR.begin(task({"args": {"urls": list(urls)}, **more}, outputs=outputs))


def test_a_program_that_stays_warm_is_told_what_to_fetch(task: Callable[..., Task]) -> None:
    action = begun(task, WEB, THERE, "ftp://u:p@h/x", "file:///x", "https://h:1/?q", n_outputs=5)
    assert isinstance(action, Talk)
    there = Concrete(ObjectId("upload:1"), None, frozenset({"host:8001"}))
    urls = [WEB, there, "ftp://u:p@h/x", "file:///x", "https://h:1/?q"]
    assert action.arguments == {"proc_pargs": [], "proc_kwargs": {"urls": urls}}
    assert (action.kind, action.fixed) == ("grab", None)
    assert action.kind == begun(task, "http://other.example").kind


def test_what_is_there_already_needs_no_program(task: Callable[..., Task]) -> None:
    action = begun(task, THERE, "swbs://[::1]:8002/x")
    assert isinstance(action, Finish)
    assert [from_json(codec.decode(action.contents[i])) for i in range(2)] == [
        Concrete(ObjectId("upload:1"), None, frozenset({"host:8001"})),
        Concrete(ObjectId("x"), None, frozenset({"[::1]:8002"})),
    ]


def test_its_outputs_name_objects() -> None:
    assert EXECUTOR.mentions is Mentions.ANYTHING
    assert not EXECUTOR.wants_package


def test_a_spawn_has_an_output_for_each_url_and_is_named_by_all_that_it_says() -> None:
    args = {"urls": [WEB, THERE], "version": 3}
    form = ChildForm({"args": args}, 2, memoise=True, as_list=True)
    assert EXECUTOR.child_form({"args": args}) == form
    assert EXECUTOR.child_form({"args": args, "n_outputs": 2}) == form
    with pytest.raises(BadArgumentsError, match="exactly 2 outputs, not 1"):
        EXECUTOR.child_form({"args": args, "n_outputs": 1})


@pytest.mark.parametrize(
    "args, words",
    [
        ({}, "'urls' must be a list of at least one URL"),
        ({"urls": []}, "'urls' must be a list of at least one URL"),
        ({"urls": WEB}, "'urls' must be a list of at least one URL"),
        ({"urls": [1]}, "'urls' contains 1, which is not a string"),
        ({"urls": ["gopher://h/"]}, "'gopher://h/' in 'urls' is none of http, https, ftp, file"),
        ({"urls": ["data:,x"]}, "'data:,x' in 'urls' is none of"),
        ({"urls": ["/etc/passwd"]}, "'/etc/passwd' in 'urls' is none of"),
        ({"urls": ["http:///x"]}, "'http:///x' in 'urls' names no host"),
        ({"urls": ["http://[::1/x"]}, "'http://[::1/x' in 'urls' is wrong: "),
        ({"urls": ["swbs://host/x"]}, "'swbs://host/x' in 'urls' is wrong: "),
        ({"urls": ["swbs://host:1/"]}, "'swbs://host:1/' in 'urls' is wrong: "),
        ({"urls": ["swbs://host:1/a/b"]}, "'swbs://host:1/a/b' in 'urls' is wrong: "),
        ({"urls": ["swbs://host:1/a?b"]}, "'swbs://host:1/a?b' in 'urls' is wrong: "),
        ({"urls": [WEB, WEB]}, "exactly 2 outputs, not 1"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(
    task: Callable[..., Task], args: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadArgumentsError) as caught:
        EXECUTOR.begin(task({"args": args}, executor="grab"))
    assert words in str(caught.value)


# --- the program ----------------------------------------------------------------------------------


class Grabbing:
    """The program, and what a worker does for it."""

    def __init__(self, directory: Path, argv: tuple[str, ...]) -> None:
        self.directory = directory
        fifos = [directory / "from_process", directory / "to_process"]
        for fifo in fifos:
            os.mkfifo(fifo)
        self.program = subprocess.Popen(
            [*argv, "--write-fifo", str(fifos[0]), "--read-fifo", str(fifos[1])],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"no_proxy": "*"},
        )
        self._reads = fifos[0].open("rb", buffering=0)
        self._writes = fifos[1].open("wb", buffering=0)
        self._calls: list[Call] = []
        self._reader = CallReader()

    def close(self) -> None:
        self._writes.close()
        self._reads.close()
        self.program.kill()
        self.program.wait()

    def __call__(self, *urls: str | Reference) -> list[Reference] | str:
        """Have a task done: the references that it published, or the error that it reported."""
        self.say("start_task", {"proc_pargs": [], "proc_kwargs": {"urls": list(urls)}})
        published: dict[int, Reference] = {}
        allocated = 0
        while True:
            method, args = self.hear()
            if method == "allocate_output":
                self.say(method, {"index": len(urls) + allocated})
                allocated += 1
            elif method == "open_output":
                (self.directory / str(args["index"])).touch()
                path = str(self.directory / str(args["index"]))
                self.say(method, {"sending_fd": False, "filename": path})
            elif method == "close_output":
                self.say(method, {"ref": stored(str(args["index"]), "w:1")})
            elif method == "rollback_output":
                self.say(method, {"ref": None})
            elif method == "publish_string":
                told = Value(ObjectId("out"), args["str"])
                published[args["index"]] = from_json(codec.decode(told.content))
                self.say(method, {"ref": told})
            elif method == "error":
                return str(args["report"])
            else:
                assert (method, args) == ("exit", {"keep_process": "may_keep"})
                return [published[index] for index in range(len(urls))]

    def contents(self, *urls: str) -> list[bytes]:
        """Run a task; return the content that it fetched."""
        found = self(*urls)
        assert isinstance(found, list), found
        return [(self.directory / ref.id).read_bytes() for ref in found]

    def say(self, method: str, args: Any) -> None:
        self._writes.write(encode_call(method, args))

    def hear(self) -> Call:
        while not self._calls:
            data = self._reads.read(1 << 20)
            assert data, "the program is gone"
            self._calls = self._reader.feed(data)
        return self._calls.pop(0)


class Web(BaseHTTPRequestHandler):
    """Answers by path."""

    first_half_read = threading.Event()

    def do_GET(self) -> None:
        kind, _, rest = self.path.removeprefix("/").partition("/")
        if kind == "bytes":
            self._answer(b"x" * int(rest))
        elif kind == "short":
            self._answer(b"x" * 5_000_000, said_bytes=5_000_001)
        elif kind == "halves":
            self._answer(b"x" * 2_000_000, said_bytes=4_000_000)
            assert self.first_half_read.wait(20)
            self.wfile.write(b"y" * 2_000_000)
        elif kind == "to":
            self.send_response(302)
            self.send_header("Location", rest)
            self.end_headers()
        else:
            self.send_error(404)

    def _answer(self, content: bytes, said_bytes: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(said_bytes or len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def start(task: Callable[..., Task], directory: Path) -> Grabbing:
    program = begun(task, WEB).program
    return Grabbing(directory, program.argv)


@pytest.fixture
def grab(task: Callable[..., Task], tmp_path: Path) -> Iterator[Grabbing]:
    grabbing = start(task, tmp_path)
    yield grabbing
    grabbing.close()


def test_each_url_becomes_an_object_and_references_stay(
    grab: Grabbing, web: str, tmp_path: Path
) -> None:
    (tmp_path / "here").write_bytes(b"in a file")
    there = stored("there", "w:1")
    found = grab(f"{web}/bytes/3000000", there, (tmp_path / "here").as_uri(), f"{web}/bytes/0")
    assert found == [stored("4", "w:1"), there, stored("5", "w:1"), stored("6", "w:1")]
    contents = [(tmp_path / name).read_bytes() for name in "456"]
    assert contents == [b"x" * 3_000_000, b"in a file", b""]
    # The same process serves the next task, and ends after the last one.
    assert grab.contents(f"{web}/to/{web}/to/{web}/bytes/5") == [b"xxxxx"]
    grab.say("die", {"reason": "Garbage collected"})
    assert grab.program.wait(20) == 0


def test_a_body_is_written_as_it_comes(grab: Grabbing, web: str, tmp_path: Path) -> None:
    Web.first_half_read.clear()

    def look() -> None:
        wait_for(lambda: (tmp_path / "1").exists(), "the output")
        wait_for(lambda: (tmp_path / "1").stat().st_size >= 1_000_000, "much of a body")
        Web.first_half_read.set()

    looking = threading.Thread(target=look)
    looking.start()
    assert grab.contents(f"{web}/halves") == [b"x" * 2_000_000 + b"y" * 2_000_000]
    looking.join()


@pytest.mark.parametrize(
    "path, why",
    [
        ("/absent", "the server answered 404 Not Found"),
        ("/short", "it broke off, with 1 bytes still to come"),
        ("/to/file:///etc/hostname", "not allowed"),
        ("/to/ftp://127.0.0.1/x", "it redirects to ftp://127.0.0.1/x, which is neither"),
        ("/a b", "URL can't contain control characters"),
    ],
)
def test_what_cannot_be_fetched_is_named_with_the_reason(
    grab: Grabbing, web: str, path: str, why: str
) -> None:
    report = grab(f"{web}/bytes/1", web + path)
    assert isinstance(report, str)
    assert report.startswith(f"{web}{path} could not be fetched: ")
    assert why in report
    assert grab.program.wait(20) == 1


@pytest.mark.parametrize(
    "url, why",
    [
        ("file:///no/such/file", "No such file or directory"),
        ("http://127.0.0.1:1/", "Connection refused"),
        ("ftp://127.0.0.1:1/x", "Connection refused"),
    ],
)
def test_what_is_not_there_is_named_with_the_reason(grab: Grabbing, url: str, why: str) -> None:
    assert grab(url) == f"{url} could not be fetched: {why}"


# --- FTP ------------------------------------------------------------------------------------------


class Ftp(threading.Thread):
    """An FTP server that sends one file to one client, and then replies `last_words`.

    It knows only the commands that this takes.
    """

    def __init__(self, last_words: bytes) -> None:
        super().__init__()
        self.said: list[str] = []
        self._last_words = last_words
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.netloc = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def run(self) -> None:
        with self._socket, socket.create_server(("127.0.0.1", 0)) as passive:
            passive.settimeout(20)
            self._socket.settimeout(20)
            client, _ = self._socket.accept()
            with client, client.makefile("rwb", buffering=0) as line:
                line.write(b"220 hello\r\n")
                while words := line.readline().decode().split():
                    self.said.append(" ".join(words))
                    port = passive.getsockname()[1]
                    answer = {
                        "USER": b"331 password?",
                        "PASS": b"230 come in",
                        "PASV": b"227 (127,0,0,1,%d,%d)" % divmod(port, 256),
                        "EPSV": b"229 (|||%d|)" % port,
                        "RETR": b"150 it comes",
                        "QUIT": b"221 bye",
                    }.get(words[0], b"200 fine")
                    line.write(answer + b"\r\n")
                    if words[0] == "RETR":
                        data, _ = passive.accept()
                        with data:
                            data.sendall(b"over ftp")
                        line.write(self._last_words + b"\r\n")


def test_ftp_is_spoken_and_its_last_words_are_heeded(
    task: Callable[..., Task], tmp_path: Path
) -> None:
    for number, last_words in enumerate((b"226 done", b"426 aborted")):
        server = Ftp(last_words)
        server.start()
        (tmp_path / str(number)).mkdir()
        grabbing = start(task, tmp_path / str(number))
        url = f"ftp://me:se%20cret@{server.netloc}/a/b%20c"
        if number:
            assert grabbing(url) == f"{url} could not be fetched: 426 aborted"
        else:
            assert grabbing.contents(url) == [b"over ftp"]
        grabbing.close()
        server.join()
        assert {"USER me", "PASS se cret", "CWD a", "RETR b c"} <= set(server.said)
