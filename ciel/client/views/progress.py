"""How far the work of clients is, shown while it goes on.

    with ciel.progress():
        print(sum(client.map(count, paths)))

Calls are counted here, by the names of their functions; programs, and what tasks create, by the
master, which is asked when it has said that a job has changed. So nothing is looked for by the
clock, but for the time that is left.
"""

from __future__ import annotations

import html
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TextIO

from ciel.client.errors import ClientError
from ciel.client.locks import Changes
from ciel.core.jobs import JobSummary
from ciel.execution.report import visible
from ciel.python import sessions
from ciel.python.calls import EXECUTOR

if TYPE_CHECKING:
    from ciel.client.calls.futures import Tally
    from ciel.client.client import Client

REDRAWN_S: Final = 0.1
"""The least time between two pictures."""
PLAIN_S: Final = 10.0
"""Between two lines where nothing can be redrawn."""
_LOOK_S = 1.0  # what nobody tells: the time, and clients that are new
_WINDOW_S = 10.0  # so much of the past says how quick it is
_LAST_S = 2.0  # at the end, for the last numbers
_BUNDLE = re.compile(r"(\d+) calls of (.*)", re.DOTALL)


class Row(NamedTuple):
    """How far the work of one name is. `grows`: there may be more of it than is known."""

    name: str
    done: int = 0
    running: int = 0
    failed: int = 0
    total: int = 0
    grows: bool = False

    def with_more(self, done: int, running: int, failed: int, total: int, grows: bool) -> Row:
        """Return what it is together with other work of the same name."""
        return Row(
            self.name, self.done + done, self.running + running, self.failed + failed,
            self.total + total, self.grows or grows,
        )  # fmt: skip


class View(NamedTuple):
    """A row, and how quick it is; `left_s`: how long it will take, if that can be said."""

    row: Row
    per_s: float
    left_s: float | None

    @property
    def total(self) -> str:
        return f"≥ {self.row.total}" if self.row.grows else str(self.row.total)

    @property
    def facts(self) -> list[str]:
        """What there is to say besides how many are done."""
        row = self.row
        facts = [f"{row.running} running"] if row.running else []
        facts += [f"{row.failed} failed"] if row.failed else []
        facts += [f"{self.per_s:.3g}/s"] if self.per_s else []
        return facts + ([f"{_time(self.left_s)} left"] if self.left_s is not None else [])

    def __str__(self) -> str:
        return ", ".join([f"{self.row.name}: {self.row.done} of {self.total} done", *self.facts])


def rows_of(
    tallies: Mapping[str, Tally], kinds: Iterable[Mapping[str, Any]], job_name: str
) -> list[Row]:
    """Put together what the client counts, and what its master does (`progress` of `answers`)."""
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


def _kinds_of(client: Client, job_id: str) -> list[dict[str, Any]]:
    """Ask how the tasks of a job stand; raises ClientError."""
    while True:  # of very many the master counts some for each answer
        told = client.ask("progress", {"job": job_id})
        if told["counted"]:
            kinds: list[dict[str, Any]] = told["kinds"]
            return kinds


class Display(Protocol):
    """Where the picture is shown."""

    def show(self, views: list[View], *, is_last: bool) -> None: ...


class Progress:
    """A picture of how far the work of some clients is, for as long as the context lasts; within
    another it shows nothing of its own. What was done before does not count.
    """

    _shown: Progress | None = None
    _guard = threading.Lock()

    def __init__(self, client: Client | None = None, *, stream: TextIO | None = None) -> None:
        self._client = client
        self._display: Display = _display(stream or sys.stderr)
        self._changed = Changes()
        self._has_news = False
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._clients: dict[int, tuple[Client, dict[str, Row]]] = {}  # with what was before
        self._kinds: dict[str, tuple[JobSummary | None, list[dict[str, Any]]]] = {}
        self._past: dict[str, deque[tuple[float, int]]] = {}
        self._seen_s = time.monotonic()  # when we looked last
        self._inner = 0  # how often it was entered within another, or itself

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
        self._thread.join(_LAST_S)
        for client, _ in self._clients.values():
            client.listen(self._tell, listens=False)
        with Progress._guard:
            Progress._shown = None
        self._thread = None

    def views(self, *, afresh: bool = False) -> list[View]:
        """Say how far everything is; asks masters of what has changed (`afresh`: of everything),
        and may wait for them.
        """
        self._find_clients()
        rows: dict[str, Row] = {}
        for client, before in self._clients.values():
            for row in self._rows(client, afresh=afresh):
                then = before.get(row.name, Row(row.name))
                done, failed = row.done - then.done, row.failed - then.failed
                total = row.total - then.done - then.failed
                row = row._replace(done=done, failed=failed, total=total)
                rows[row.name] = rows.get(row.name, Row(row.name)).with_more(*row[1:])
        views = [self._view(row) for row in rows.values() if row.total]
        self._seen_s = time.monotonic()
        return views

    def _find_clients(self) -> None:
        found: Iterable[Any] = [self._client] if self._client is not None else sessions.everyone()
        for client in found:
            if id(client) not in self._clients and hasattr(client, "listen"):
                before = {row.name: row for row in self._rows(client)}
                self._clients[id(client)] = client, before
                client.listen(self._tell)

    def _tell(self) -> None:
        """Learn that something may have changed."""
        if not self._has_news:
            with self._changed:
                self._has_news = True
                self._changed.notify_all()

    def _rows(self, client: Client, *, afresh: bool = False) -> list[Row]:
        kinds: list[dict[str, Any]] = []
        name = ""
        for job in client.jobs:
            known = self._kinds.get(job.id, (None, []))
            if job.summary is not None and (afresh or job.summary is not known[0]):
                try:
                    summary = job.summary
                    known = self._kinds[job.id] = summary, _kinds_of(client, job.id)
                except ClientError:
                    pass  # it is gone, or cannot be reached now: what was known must do
            kinds += known[1]
            name = name or job.name
        calls = client.open_calls
        return rows_of({} if calls is None else calls.functions.tallies, kinds, name)

    def _view(self, row: Row) -> View:
        now_s, ended = time.monotonic(), row.done + row.failed
        past = self._past.setdefault(row.name, deque([(self._seen_s, 0)]))
        while len(past) > 1 and past[1][0] < now_s - _WINDOW_S:
            past.popleft()
        then_s, then = past[0]
        if now_s > past[-1][0] + _WINDOW_S / 100:
            past.append((now_s, ended))
        per_s = max(0.0, (ended - then) / (now_s - then_s)) if now_s > then_s else 0.0
        left = row.total - ended
        left_s = left / per_s if per_s and left > 0 and not row.grows else None
        return View(row, per_s, left_s)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main one's
        while not self._is_over:
            self._changed.wait_for(lambda: self._has_news or self._is_over, _LOOK_S)
            self._has_news = False
            self._display.show(self.views(), is_last=False)
            self._changed.wait_for(lambda: self._is_over, REDRAWN_S)
        self._display.show(self.views(afresh=True), is_last=True)


# --- displays -------------------------------------------------------------------------------------


class Plain:
    """Lines, now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = time.monotonic()
        self._said: list[str] = []

    def show(self, views: list[View], *, is_last: bool) -> None:
        now_s = time.monotonic()
        if now_s < self._shown_s + PLAIN_S and not is_last:
            return
        self._shown_s = now_s
        lines = [f"ciel: {visible(str(view))}\n" for view in views]
        try:
            self._stream.write("".join([line for line in lines if line not in self._said]))
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it; the work goes on
        self._said = lines


class Lines:
    """A line for each name on a terminal, by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        is_seen = sys.stdout.isatty()  # then what is printed appears above the lines
        self._live = Live(
            console=Console(file=stream), auto_refresh=False, redirect_stdout=is_seen,
            redirect_stderr=sys.stderr.isatty(),
        )  # fmt: skip

    def show(self, views: list[View], *, is_last: bool) -> None:
        if views:
            self._live.start()
            self._live.update(table_of(views), refresh=True)
        if is_last:
            self._live.stop()


def table_of(views: list[View]) -> Any:
    """Return what rich shows of them."""
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
    """The same in a notebook, by ipywidgets."""

    def __init__(self) -> None:
        import ipywidgets  # type: ignore[import-untyped]  # it has no types
        from IPython.display import display

        self._widget = ipywidgets.HTML()
        display(self._widget)  # type: ignore[no-untyped-call]  # nor has this

    def show(self, views: list[View], *, is_last: bool) -> None:
        self._widget.value = html_of(views)


def html_of(views: list[View]) -> str:
    """Return what a notebook shows of them."""
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
    """Choose what can be shown here."""
    try:
        if is_notebook():
            return Widget()
        if stream.isatty():
            return Lines(stream)
    except (ImportError, ValueError):  # it is not installed, or the stream is closed
        pass
    return Plain(stream)


def is_notebook() -> bool:
    """Tell whether we run in the kernel of one."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def progress(client: Client | None = None, *, stream: TextIO | None = None) -> Progress:
    """Show how far the work is while a context lasts: `with ciel.progress():`. One line for each
    name of functions and programs: how many are done, run, have failed, and how many there are (≥
    where tasks still create others), how quick that is, and how long it will take.

    On a terminal lines are redrawn (with rich), in a notebook there is a widget (with ipywidgets),
    elsewhere, and without these, there are plain lines now and then. `client`: by default all that
    are open. `stream`: by default standard error.
    """
    return Progress(client, stream=stream)
