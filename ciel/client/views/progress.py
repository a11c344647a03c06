"""Shows the progress of the tasks of clients while they run.

    with ciel.progress():
        print(sum(client.map(count, paths)))

The client counts its own calls, by the names of their functions. The master counts programs and the
tasks that other tasks spawn; the client queries the master when a message reports that a job has
changed. A timer updates the remaining time, and finds clients that were opened during the block.
"""

from __future__ import annotations

import html
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TextIO

from ciel.client.errors import ClientError
from ciel.client.locks import ForkSafeCondition
from ciel.core.ids import JobId
from ciel.core.jobs import JobSummary
from ciel.execution.report import visible
from ciel.python import sessions
from ciel.python.calls import EXECUTOR

REDRAWN_S: Final = 0.1
"""The shortest time between two updates of the display."""
PLAIN_S: Final = 10.0
"""The time between two updates if the display cannot redraw lines."""
_POLL_S = 1.0  # to update the remaining time, and to find new clients
_WINDOW_S = 10.0  # the period from which the rate is computed
_FINAL_UPDATE_MAX_S = 2.0  # the time that the last update may take
_BUNDLE = re.compile(r"(\d+) calls of (.*)", re.DOTALL)


class Counts(Protocol):
    """How many calls of one name the client has submitted, and how many have ended."""

    submitted: int
    done: int
    failed: int


class _Functions(Protocol):
    @property
    def tallies(self) -> Mapping[str, Counts]: ...


class _Calls(Protocol):
    @property
    def functions(self) -> _Functions: ...


class _Job(Protocol):
    id: JobId
    name: str

    @property
    def summary(self) -> JobSummary | None: ...


class WatchedClient(Protocol):
    """The part of a client that this module uses."""

    @property
    def jobs(self) -> Sequence[_Job]: ...

    @property
    def open_calls(self) -> _Calls | None: ...

    def ask(self, topic: str, argument: Any = None) -> Any: ...

    def listen(self, listener: Callable[[], None], *, listens: bool = True) -> None: ...


class Row(NamedTuple):
    """The counts of calls or tasks of one name. `grows`: tasks may still add to the total."""

    name: str
    done: int = 0
    running: int = 0
    failed: int = 0
    total: int = 0
    grows: bool = False

    def with_more(self, done: int, running: int, failed: int, total: int, grows: bool) -> Row:
        """Return the sum with other counts of the same name."""
        return Row(
            self.name, self.done + done, self.running + running, self.failed + failed,
            self.total + total, self.grows or grows,
        )  # fmt: skip


class View(NamedTuple):
    """A row, its rate, and the estimated remaining time, if there is an estimate."""

    row: Row
    per_s: float
    left_s: float | None

    @property
    def total(self) -> str:
        return f"≥ {self.row.total}" if self.row.grows else str(self.row.total)

    @property
    def facts(self) -> list[str]:
        """Short texts about the row, other than how many are done."""
        row = self.row
        facts = [f"{row.running} running"] if row.running else []
        facts += [f"{row.failed} failed"] if row.failed else []
        facts += [f"{self.per_s:.3g}/s"] if self.per_s else []
        return facts + ([f"{_time(self.left_s)} left"] if self.left_s is not None else [])

    def __str__(self) -> str:
        return ", ".join([f"{self.row.name}: {self.row.done} of {self.total} done", *self.facts])


def rows_of(
    tallies: Mapping[str, Counts], kinds: Iterable[Mapping[str, Any]], job_name: str
) -> list[Row]:
    """Combine the counts of the client with the master's answer to `progress`."""
    rows = {
        name: Row(name, tally.done, 0, tally.failed, tally.submitted)
        for name, tally in list(tallies.items())
    }
    busy = ("waiting", "runnable", "assigned")
    is_busy = any(kind["counts"].get(state) for kind in kinds for state in busy)
    for kind in kinds:
        bundle = _BUNDLE.fullmatch(kind["name"])
        each, name = (int(bundle[1]), bundle[2]) if bundle else (1, kind["name"])
        name = name or job_name or kind["executor"]
        running, counts = kind["running"], kind["counts"]
        row = rows.get(name, Row(name))
        if kind["executor"] == EXECUTOR and not kind["spawned"]:
            rows[name] = row._replace(running=row.running + running)
            continue
        done, failed = each * counts.get("done", 0), each * counts.get("failed", 0)
        total = done + failed + each * sum(counts.get(state, 0) for state in busy)
        grows = kind["spawned"] and is_busy
        rows[name] = row.with_more(done, running, failed, total, grows)
    return list(rows.values())


def _kinds_of(client: WatchedClient, job_id: str) -> list[dict[str, Any]]:
    """Query the master for the counts of a job's tasks; raises ClientError."""
    while True:  # for each answer the master counts a limited number of tasks
        answer = client.ask("progress", {"job": job_id})
        if answer["counted"]:
            kinds: list[dict[str, Any]] = answer["kinds"]
            return kinds


class Display(Protocol):
    """Displays the rows."""

    def show(self, views: list[View], *, is_last: bool) -> None: ...


class Progress:
    """A context manager that displays the progress of clients during a block.

    Inside the block of another `Progress` it displays nothing. Calls and tasks that ended before
    the block do not count.
    """

    _shown: Progress | None = None
    _guard = threading.Lock()

    def __init__(
        self, client: WatchedClient | None = None, *, stream: TextIO | None = None
    ) -> None:
        self._client = client
        self._display: Display = _display(stream or sys.stderr)
        self._changed = ForkSafeCondition()
        self._has_news = False
        self._is_over = False
        self._thread: threading.Thread | None = None
        # With the counts of each client at the start of the block.
        self._clients: dict[int, tuple[WatchedClient, dict[str, Row]]] = {}
        self._kinds: dict[str, tuple[JobSummary | None, list[dict[str, Any]]]] = {}
        self._past: dict[str, deque[tuple[float, int]]] = {}
        self._updated_s = time.monotonic()  # the time of the last update
        self._inner = 0  # blocks of this object that are open inside another block

    def __enter__(self) -> Self:
        with Progress._guard:
            if Progress._shown is not None:
                self._inner += 1
                return self
            Progress._shown = self
        self._find_clients()
        self._thread = threading.Thread(target=self._run, name="ciel-progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._inner or self._thread is None:
            self._inner -= 1
            return
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(_FINAL_UPDATE_MAX_S)
        for client, _ in self._clients.values():
            client.listen(self._note_change, listens=False)
        with Progress._guard:
            Progress._shown = None
        self._thread = None

    def views(self, *, refresh: bool = False) -> list[View]:
        """Query the masters about jobs that have changed, and return the current counts.

        With `refresh`, query them about all jobs. The call may block until they reply.
        """
        self._find_clients()
        rows: dict[str, Row] = {}
        for client, before in self._clients.values():
            for row in self._rows(client, refresh=refresh):
                start = before.get(row.name, Row(row.name))
                done, failed = row.done - start.done, row.failed - start.failed
                total = row.total - start.done - start.failed
                row = row._replace(done=done, failed=failed, total=total)
                rows[row.name] = rows.get(row.name, Row(row.name)).with_more(*row[1:])
        views = [self._view(row) for row in rows.values() if row.total]
        self._updated_s = time.monotonic()
        return views

    def _find_clients(self) -> None:
        found: Iterable[Any] = [self._client] if self._client is not None else sessions.everyone()
        for client in found:
            if id(client) not in self._clients and hasattr(client, "listen"):
                before = {row.name: row for row in self._rows(client)}
                self._clients[id(client)] = client, before
                client.listen(self._note_change)

    def _note_change(self) -> None:
        """Wake the thread: counts may have changed."""
        if not self._has_news:
            with self._changed:
                self._has_news = True
                self._changed.notify_all()

    def _rows(self, client: WatchedClient, *, refresh: bool = False) -> list[Row]:
        kinds: list[dict[str, Any]] = []
        name = ""
        for job in client.jobs:
            known = self._kinds.get(job.id, (None, []))
            if job.summary is not None and (refresh or job.summary is not known[0]):
                try:
                    summary = job.summary
                    known = self._kinds[job.id] = summary, _kinds_of(client, job.id)
                except ClientError:
                    pass  # the master is unreachable: use its last answer
            kinds += known[1]
            name = name or job.name
        calls = client.open_calls
        return rows_of({} if calls is None else calls.functions.tallies, kinds, name)

    def _view(self, row: Row) -> View:
        now_s, ended = time.monotonic(), row.done + row.failed
        past = self._past.setdefault(row.name, deque([(self._updated_s, 0)]))
        while len(past) > 1 and past[1][0] < now_s - _WINDOW_S:
            past.popleft()
        first_s, first_ended = past[0]
        if now_s > past[-1][0] + _WINDOW_S / 100:
            past.append((now_s, ended))
        per_s = max(0.0, (ended - first_ended) / (now_s - first_s)) if now_s > first_s else 0.0
        left = row.total - ended
        left_s = left / per_s if per_s and left > 0 and not row.grows else None
        return View(row, per_s, left_s)

    def _run(self) -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # the main thread handles them
        while not self._is_over:
            self._changed.wait_for(lambda: self._has_news or self._is_over, _POLL_S)
            self._has_news = False
            self._display.show(self.views(), is_last=False)
            self._changed.wait_for(lambda: self._is_over, REDRAWN_S)
        self._display.show(self.views(refresh=True), is_last=True)


# --- displays -------------------------------------------------------------------------------------


class Plain:
    """Writes lines at long intervals."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = time.monotonic()
        self._written_lines: list[str] = []

    def show(self, views: list[View], *, is_last: bool) -> None:
        now_s = time.monotonic()
        if now_s < self._shown_s + PLAIN_S and not is_last:
            return
        self._shown_s = now_s
        lines = [f"ciel: {visible(str(view))}\n" for view in views]
        try:
            self._stream.write("".join([line for line in lines if line not in self._written_lines]))
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the stream is closed; the program goes on
        self._written_lines = lines


class Lines:
    """Redraws a line for each name on a terminal, with rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        is_terminal = (
            sys.stdout.isatty()
        )  # then the output of the program is printed above the lines
        self._live = Live(
            console=Console(file=stream), auto_refresh=False, redirect_stdout=is_terminal,
            redirect_stderr=sys.stderr.isatty(),
        )  # fmt: skip

    def show(self, views: list[View], *, is_last: bool) -> None:
        if views:
            self._live.start()
            self._live.update(table_of(views), refresh=True)
        if is_last:
            self._live.stop()


def table_of(views: list[View]) -> Any:
    """Return the rows as a table of rich."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for view in views:
        row = view.row
        bar = ProgressBar(total=max(row.total, 1), completed=row.done + row.failed, width=24)
        facts = Text(", ".join(view.facts), style="red" if row.failed else "")
        name = Text(visible(row.name), overflow="ellipsis", no_wrap=True)
        table.add_row(name, bar, f"{row.done} of {view.total}", facts)
    return table


class Widget:
    """Displays the rows in a notebook, with ipywidgets."""

    def __init__(self) -> None:
        import ipywidgets  # type: ignore[import-untyped]  # the package has no types
        from IPython.display import display

        self._widget = ipywidgets.HTML()
        display(self._widget)  # type: ignore[no-untyped-call]  # IPython has no types either

    def show(self, views: list[View], *, is_last: bool) -> None:
        self._widget.value = html_of(views)


def html_of(views: list[View]) -> str:
    """Return the rows as HTML."""
    rows = []
    for view in views:
        row = view.row
        cells = [
            html.escape(visible(row.name)),
            f'<progress value="{row.done + row.failed}" max="{max(row.total, 1)}"></progress>',
            f"{row.done} of {view.total}",
            html.escape(", ".join(view.facts)),
        ]
        rows.append(f"<tr><td>{'</td><td>'.join(cells)}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _display(stream: TextIO) -> Display:
    """Choose the display for a stream."""
    try:
        if is_notebook():
            return Widget()
        if stream.isatty():
            return Lines(stream)
    except (
        ImportError,
        ValueError,
    ):  # rich or ipywidgets is not installed, or the stream is closed
        pass
    return Plain(stream)


def is_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def progress(client: WatchedClient | None = None, *, stream: TextIO | None = None) -> Progress:
    """Display the progress of tasks during a block: `with ciel.progress():`.

    There is a line for each name of functions and programs: how many calls are done, are running
    and have failed, the total (≥ while tasks still spawn others), the rate, and the remaining time.
    On a terminal, lines are redrawn (with rich); in a notebook there is a widget (with ipywidgets).
    Elsewhere, and without these packages, plain lines are written every ten seconds. `client`: by
    default all open clients. `stream`: by default standard error.
    """
    return Progress(client, stream=stream)
