"""Progress: the counts and the displays."""

import contextlib
import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

import ciel
from ciel.client.calls.functions import Tally
from ciel.client.errors import ConnectionLostError
from ciel.client.views import progress as module
from ciel.client.views.progress import Lines, Plain, Progress, Row, View, html_of, rows_of, table_of
from ciel.core.jobs import JobSummary

WAIT_S = 10.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ciel.Client]:
    environ = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    options = {"workers": 1, "slots": 2}
    with ciel.Client(cluster_options=options, environ=environ) as client:
        yield client


def seen(progress: Progress, wanted: Callable[[dict[str, Row]], object]) -> dict[str, Row]:
    """Return the rows once they satisfy a condition."""
    until_s = time.monotonic() + WAIT_S
    while True:
        rows = {view.row.name: view.row for view in progress.views()}
        if wanted(rows):
            return rows
        assert time.monotonic() < until_s, rows
        time.sleep(0.02)


def double(number: int) -> int:
    return 2 * number


def refuse(number: int) -> None:
    raise ValueError(number)


@ciel.task(retries=1)  # one task for each call
def linger(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def begin_several(count: int) -> Any:
    futures = [linger.spawn(0.5) for _ in range(count)]
    return ciel.gather(futures)


# --- numbers --------------------------------------------------------------------------------------


def test_calls_and_programs_are_counted_by_name(client: ciel.Client) -> None:
    client.submit(double, 1).result(WAIT_S)  # before the block, so it does not count
    with ciel.progress(client, stream=io.StringIO()) as shown:
        assert list(client.map(double, range(100))) == list(range(0, 200, 2))
        failed = [client.submit(refuse, number) for number in range(3)]
        client.wait(failed, WAIT_S)
        sleepers = [client.run(["sleep", "60"]) for _ in range(3)]
        rows = seen(shown, lambda rows: "sleep" in rows and rows["sleep"].running == 2)
        client.cancel(sleepers)
    assert rows == {
        "double": Row("double", 100, 0, 0, 100),
        "refuse": Row("refuse", 0, 0, 3, 3),
        "sleep": Row("sleep", 0, 2, 0, 3),
    }


def test_totals_grow_while_tasks_spawn_others(client: ciel.Client) -> None:
    with ciel.progress(client, stream=io.StringIO()) as shown:
        future = client.submit(begin_several, 3)
        rows = seen(shown, lambda rows: "linger" in rows and rows["linger"].grows)
        assert rows["linger"].total >= 1
        assert len(future.result(WAIT_S)) == 3
        rows = seen(shown, lambda rows: rows["linger"].done == 3 and not rows["linger"].grows)
    assert rows["linger"] == Row("linger", 3, 0, 0, 3)


def kind(name: str, executor: str, spawned: bool, running: int = 0, **counts: int) -> Any:
    return {
        "name": name, "executor": executor, "spawned": spawned, "running": running,
        "counts": counts,
    }  # fmt: skip


def test_counts_of_client_and_master_are_combined() -> None:
    tally = Tally()
    tally.submitted, tally.done, tally.failed = 10, 4, 1
    kinds = [
        kind("5 calls of f", "python", False, running=1, assigned=1),  # the tally counts these
        kind("f", "python", True, done=2, dormant=3),
        kind("20 calls of g", "python", True, done=1, waiting=1),
        kind("", "stdinout", False, done=1, cancelled=1),
    ]
    assert rows_of({"f": tally}, kinds, "the job") == [
        Row("f", 6, 1, 1, 12, True), Row("g", 20, 0, 0, 40, True), Row("the job", 1, 0, 0, 1),
    ]  # fmt: skip
    over = [kind("f", "python", True, done=2)]
    assert rows_of({}, over, "") == [Row("f", 2, 0, 0, 2, False)]


class StubClient:
    """A client with one job, whose counts the test sets."""

    def __init__(self) -> None:
        self.done = 0
        self.job = mock.Mock(id="j", summary=None)
        self.job.name = "work"
        self.jobs = [self.job]
        self.open_calls = None
        self.listeners: list[Callable[[], None]] = []
        self.is_lost = False
        self.asked = 0

    def listen(self, listener: Callable[[], None], *, listens: bool = True) -> None:
        (self.listeners.append if listens else self.listeners.remove)(listener)

    def ask(self, topic: str, argument: Any) -> Any:
        self.asked += 1
        if self.is_lost:
            raise ConnectionLostError("there", "for a moment")
        kinds = [kind("", "stdinout", False, done=self.done, waiting=10 - self.done)]
        return {"kinds": kinds, "counted": self.asked % 2 == 0}

    def change(self, done: int) -> None:
        self.done = done
        self.job.summary = mock.Mock(spec=JobSummary)
        for listener in self.listeners:
            listener()


def test_a_master_is_queried_after_a_change_and_may_be_unreachable() -> None:
    client = StubClient()
    with Progress(client, stream=io.StringIO()) as shown:  # type: ignore[arg-type]  # as far as it is used
        client.change(3)
        rows = seen(shown, lambda rows: rows)
        asked = client.asked
        shown.views()
        assert client.asked == asked
        client.is_lost = True
        client.change(5)
        assert seen(shown, lambda rows: rows) == rows == {"work": Row("work", 3, 0, 0, 10)}
        client.is_lost = False
        client.change(6)
        seen(shown, lambda rows: rows["work"].done == 6)
    assert client.listeners == []


def test_only_the_outermost_shows_something() -> None:
    client, outer, inner = StubClient(), io.StringIO(), io.StringIO()
    around = Progress(client, stream=outer)  # type: ignore[arg-type]  # as above
    with around:
        with ciel.progress(client, stream=inner), around:  # type: ignore[arg-type]  # as above
            client.change(10)
        assert len(client.listeners) == 1
        assert outer.getvalue() == ""
    assert "work: 10 of 10 done" in outer.getvalue()
    assert inner.getvalue() == ""
    assert not [t for t in threading.enumerate() if t.name == "ciel-progress"]


# --- pictures -------------------------------------------------------------------------------------

VIEWS = [
    View(Row("count <b>", 4, 2, 1, 10), 2.5, 2.0),
    View(Row("fib", 100, 0, 0, 120, True), 0.0, None),
]
LINES = ["count <b>: 4 of 10 done, 2 running, 1 failed, 2.5/s, 2 s left", "fib: 100 of ≥ 120 done"]


def test_a_row_is_a_line_of_text() -> None:
    assert [str(view) for view in VIEWS] == LINES


@pytest.mark.parametrize(
    "left_s, text",
    [(0.1, "1 s"), (59.4, "59 s"), (61, "1 min"), (5400, "90 min"), (9000, "2 h 30 min")],
)
def test_the_time_left_is_short(left_s: float, text: str) -> None:
    assert str(View(Row("f", 1, 0, 0, 2), 0.0, left_s)) == f"f: 1 of 2 done, {text} left"


def test_rich_shows_a_line_for_each() -> None:
    console = Console(width=100, color_system=None)
    with console.capture() as shown:
        console.print(table_of(VIEWS))
    lines = [re.sub(r"\s+|[━╸╺]+", " ", line).split() for line in shown.get().splitlines()]
    assert lines == [
        [
            "count",
            "<b>",
            "4",
            "of",
            "10",
            "2",
            "running,",
            "1",
            "failed,",
            "2.5/s,",
            "2",
            "s",
            "left",
        ],
        ["fib", "100", "of", "≥", "120"],
    ]


def test_a_notebook_shows_a_row_for_each() -> None:
    text = html_of(VIEWS)
    assert text.count("<tr>") == 2
    assert '<td>count &lt;b&gt;</td><td><progress value="5" max="10"></progress></td>' in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_display_depends_on_the_stream() -> None:
    assert isinstance(Progress(stream=io.StringIO())._display, Plain)
    assert isinstance(Progress(stream=Terminal())._display, Lines)
    with mock.patch.dict(sys.modules, {"rich.live": None}):  # it is not installed
        assert isinstance(Progress(stream=Terminal())._display, Plain)


def test_a_notebook_has_a_widget() -> None:
    pytest.importorskip("ipywidgets")
    import IPython

    kernel = mock.Mock()
    with (
        mock.patch.object(IPython, "get_ipython", return_value=kernel),
        mock.patch("IPython.display.display") as display,
    ):
        display_of = Progress(stream=io.StringIO())._display
    assert isinstance(display_of, module.Widget)
    display_of.show(VIEWS, is_last=True)
    (widget,) = display.call_args.args
    assert widget.value == html_of(VIEWS)


def test_lines_are_redrawn_on_a_terminal_and_stay_at_the_end() -> None:
    stream = Terminal()
    display = Lines(stream)
    display.show([], is_last=False)
    assert stream.getvalue() == ""
    display.show(VIEWS, is_last=False)
    display.show(VIEWS, is_last=True)
    assert stream.getvalue().count("100 of ≥ 120") >= 2


def test_plain_lines_are_written_at_intervals_and_at_the_end() -> None:
    stream = io.StringIO()
    display = Plain(stream)
    display.show(VIEWS, is_last=False)
    assert stream.getvalue() == ""
    with mock.patch.object(module, "PLAIN_S", 0.0):
        display.show(VIEWS, is_last=False)
    assert stream.getvalue().splitlines() == [f"ciel: {line}" for line in LINES]
    display.show([VIEWS[0], View(Row("fib", 120, 0, 0, 120), 0.0, None)], is_last=True)
    assert stream.getvalue().splitlines()[2:] == ["ciel: fib: 120 of 120 done"]  # that is new
    with contextlib.closing(stream):
        pass
    display.show([], is_last=True)  # a closed stream does not raise
