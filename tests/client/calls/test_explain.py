"""Explanations of why a task waits, and the texts of futures and clients."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from rich.console import Console
from rich.pretty import pretty_repr

import ciel
from ciel.client.errors import QueryError
from ciel.client.views.explanation import Explanation
from ciel.core.graph.failures import size_text
from ciel.python.failures import TEXT_MAX_CHARACTERS, error_text, pack_error
from ciel.python.showing import FRAMES_MAX, VALUE_MAX_CHARACTERS, Shown, short

WAIT_S = 10.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    environ = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    options = {"workers": 1, "slots": 1}
    with ciel.Client(cluster_options=options, environ=environ, locals=True) as client:
        yield client


def explained(client: ciel.Client, future: Any, state: str) -> Explanation:
    """Return the explanation of a future once its task is in a state."""
    until_s = time.monotonic() + WAIT_S
    while (found := client.explain(future)).state != state:
        assert time.monotonic() < until_s, f"it is {found.state}, not {state}"
        time.sleep(0.01)
    return found


def divide(one: int, other: int) -> float:
    hidden = [one] * 1000
    return one / other + len(hidden)


# --- why ------------------------------------------------------------------------------------------


def test_a_future_is_explained_from_its_beginning_to_its_end(client: ciel.Client) -> None:
    first = client.run(["sleep", "60"])
    running = explained(client, first, "running")
    assert running.attempt == 1
    assert running.why[0].startswith(f"it runs on worker {running.worker}, as attempt 1; ")
    reader = client.run(["cat"], stdin=first)
    waiting = client.explain(reader)
    assert (waiting.name, waiting.state) == ("cat", "waiting")
    assert f"it waits for {running.task}:out:0, produced by task sleep" in waiting.why[0]
    others = [client.run(["true"], priority=-1) for _ in range(30)]
    said = ""  # until the tasks are placed, the worker has room
    while "could run, but no worker has room" not in said:
        said = explained(client, others[-1], "runnable").why[0]
    assert explained(client, others[0], "assigned").why[0].endswith("and is queued there")
    client.cancel([reader, first])
    assert client.explain(first).why == ("this program cancelled it",)
    assert others[-1].result(WAIT_S) == b""
    done = client.explain(others[-1])
    assert (done.state, done.why[0]) == ("done", "its value exists")


def test_a_failure_is_explained_once(client: ciel.Client) -> None:
    failed = client.submit(divide, 1, 0)
    assert isinstance(failed.exception(WAIT_S), ZeroDivisionError)
    text = str(client.explain(failed))
    first, *others, where = text.splitlines()
    assert first.startswith("divide is failed on worker ")
    assert others == ["why:", "  it has failed: ZeroDivisionError: division by zero"]
    assert where.startswith("  in task divide (")


def test_references_are_explained_and_nothing_else(client: ciel.Client) -> None:
    future = client.run(["true"])
    future.result(WAIT_S)
    assert client.explain(future.lot.ref).state == "done"
    with pytest.raises(TypeError, match="'fib'"):
        client.explain("fib")
    with pytest.raises(QueryError, match="the master knows no task that produces nothing"):
        client.ask("task", {"object": "nothing"})


def test_an_explanation_is_text_for_terminals_and_prompts() -> None:
    found = Explanation(
        "f\x1b", "running", ("it runs", "two\nlines"), ("1 s ago: it began",), worker="w",
        attempt=2, inputs=("a:out:0: there",),
    )  # fmt: skip
    text = (
        "f\\x1b is running on worker w, attempt 2\nwhy:\n  it runs\n  two\n  lines\n"
        "what happened:\n  1 s ago: it began\nwhat it reads:\n  a:out:0: there"
    )
    assert str(found) == text
    assert repr(found) == "<ciel.Explanation f\x1b: running>"
    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(found)
    assert shown.get() == f"{text}\n"


# --- local variables ------------------------------------------------------------------------------


def test_a_client_may_ask_for_local_variables(client: ciel.Client) -> None:
    error = client.submit(divide, 3, 0).exception(WAIT_S)
    assert isinstance(error, ZeroDivisionError)
    assert "    hidden = [3, 3, 3, 3, 3, 3, ...]\n    one = 3\n    other = 0" in str(
        error.__cause__
    )


def test_local_variables_take_little_room_whatever_they_are() -> None:
    @dataclass
    class Pair:
        one: list[int]
        other: bytes

    class Unshowable:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    values = {
        "text": "x" * 10**6,
        "many": {n: list(range(99)) for n in range(999)},
        "array": bytearray(10**6),
        "number": 1 << 10**6,
        "pair": Pair(list(range(10**5)), bytes(10**6)),
        "odd": Unshowable(),
    }

    def raise_within(
        depth: int, text: object, many: object, array: object, number: object, pair: object,
        odd: object,
    ) -> None:  # fmt: skip
        if depth:
            raise_within(depth - 1, text, many, array, number, pair, odd)
        raise LookupError

    with pytest.raises(LookupError) as raised:
        raise_within(40, **values)
    text = error_text(pack_error(raised.value, 0, True))
    assert len(text) < TEXT_MAX_CHARACTERS + 100
    assert max(map(len, text.split("\n"))) <= VALUE_MAX_CHARACTERS + 20
    assert "    array = <bytearray of 1000000 bytes>\n" in text
    assert "    number = <int of 1000001 bits>\n" in text
    assert "    pair = Pair(one=[0, 1, 2, 3, 4, 5, ...], other=<bytes of 1000000 bytes>)" in text
    assert 0 < text.count("    number = ") <= FRAMES_MAX


def test_the_errors_that_led_to_one_show_theirs_too() -> None:
    def begin() -> None:
        inner = "within"
        raise KeyError(inner)

    def go_on() -> None:
        outer = "around"
        try:
            begin()
        except KeyError as error:
            raise LookupError(outer) from error

    with pytest.raises(LookupError) as raised:
        go_on()
    text = error_text(pack_error(raised.value, 1, True))
    assert "    inner = 'within'\n" in text
    assert "    outer = 'around'\n" in text
    assert "inner = '" not in error_text(pack_error(raised.value, 1))


@pytest.mark.parametrize(
    "value, shown",
    [
        ("a\nb", r"'a\nb'"),
        (b"abc", "b'abc'"),
        (memoryview(b"abc"), "<memoryview of 3 bytes>"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, ...]"),
        (type("Names", (list,), {})([1]), "Names([1])"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_is_shown(value: object, shown: str) -> None:
    assert short(value) == shown


# --- what things say of themselves ----------------------------------------------------------------


def test_objects_of_users_have_a_repr(client: ciel.Client) -> None:
    assert client.cluster is not None
    future = client.submit(divide, 6, 3)
    future.result(WAIT_S)
    text = repr(future)
    assert text.startswith("<ciel.Future divide done size=")
    assert repr(client.run(["sleep", "60"])) == "<ciel.Future sleep waiting>"
    assert repr(client).startswith(
        f"<ciel.Client {client.location.url} cluster=1 worker with 1 slot"
    )
    assert repr(client.cluster).startswith(f"<ciel.LocalCluster {client.location.url} workers=1")
    assert [str(job)[:11] for job in client.jobs] == ["<ciel.Job 1"]
    task = ciel.task(retries=2, name="half")(divide)
    assert repr(task) == "<ciel.Task half retries=2>"
    assert pretty_repr(task) == "Task('half', retries=2)"
    assert repr(ciel.task(divide, retries=2)) == "<ciel.Task divide retries=2>"
    everything: list[Any] = [future, client, client.cluster, task]
    for shown in everything:
        assert shown._repr_html_().startswith("<table>")


def test_a_repr_never_raises_and_shows_no_markup() -> None:
    class Half(Shown):
        def _facts(self) -> Iterator[tuple[str, Any]]:
            yield "name", "<b>"
            yield "empty", None
            raise AttributeError("it was not finished")

    assert repr(Half()) == "<ciel.Half name=<b> ...>"
    assert "&lt;b&gt;" in Half()._repr_html_()
    for kind in (ciel.Client, ciel.LocalCluster, ciel.Task):
        make: Callable[[type], object] = object.__new__
        assert repr(make(kind)).startswith(f"<ciel.{kind.__name__}")


@pytest.mark.parametrize(
    "size_bytes, text",
    [(None, ""), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3 TiB")],
)
def test_a_size_is_written(size_bytes: int | None, text: str) -> None:
    assert size_text(size_bytes) == text
