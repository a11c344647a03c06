"""`/control/browse`: small HTML pages about jobs, tasks and references.

All content is escaped, the pages load no resources and run no scripts, and lists are paginated.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import Any, Final
from urllib.parse import quote

from ciel.access.browser_sessions import BrowserSessions
from ciel.access.keys import Role
from ciel.core.refs import Failure, Reference, Value, locations_of
from ciel.execution.commands import with_command
from ciel.master.resources.resource import Resource, number_argument
from ciel.master.state.queries import topics, views
from ciel.net.http import Request, Route, Routes
from ciel.wire.references import to_array

JOBS_SHOWN: Final = 100
ROOT: Final = "/control/browse"
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_STYLE: Final = (
    "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{text-align:left;padding:.2em 1em .2em 0;vertical-align:top}pre{white-space:pre-wrap}"
)
_SHOWN_MAX_LENGTH = 300


class Html(str):
    """A string that is HTML already, and needs no escaping."""


class Page(Resource):
    """The base class of all pages."""

    def page(self, request: Request, title: str, *body: str) -> bytes:
        request.setHeader("Content-Type", "text/html; charset=utf-8")
        request.setHeader("Content-Security-Policy", _POLICY)
        request.setHeader("Referrer-Policy", "no-referrer")
        head = f'<title>{escape(title)}</title><meta charset="utf-8"><style>{_STYLE}</style>'
        parts = "\n".join([f"<h1>{escape(title)}</h1>", *body])
        return (
            f"<!doctype html>\n<html><head>{head}</head><body>\n{parts}\n</body></html>\n".encode()
        )


class JobsPage(Page):
    """The newest jobs, with a link to older ones."""

    def render_GET(self, request: Request) -> bytes:
        before = number_argument(request, "before", 0) or None
        found = views.jobs(
            self.machine, self.service.epoch_s, before=before, limit=JOBS_SHOWN, state=None
        )
        rows = [
            (_link(f"job {job['number']}", "job", job["id"]), job["name"], job["state"],
             _counts(job["counts"]), job["reason"][:_SHOWN_MAX_LENGTH])
            for job in found["jobs"]
        ]  # fmt: skip
        more = _next("older jobs", "before", found["next"])
        title = f"{found['total']} jobs"
        return self.page(request, title, _table(("job", "name", "state", "tasks", ""), rows), more)


class JobPage(Page):
    """One job, its results, and a page of its tasks."""

    def render_GET(self, request: Request) -> bytes:
        found = self.job(request)
        first = number_argument(request, "first", 0)
        named = {"job": found.spec.id, "first": first}
        tasks = topics.tasks(self.machine, named)
        about = views.job(found, self.service.epoch_s)
        about["counts"] = _counts(about["counts"])
        for name in ("created", "ended"):
            about[name] = _date(about.pop(f"{name}_at_s"))
        rows = [
            (_link(str(task["number"]), "task", found.spec.id, task["task"]), task["name"],
             task["executor"], task["state"], task.get("failed", ""), task["worker"] or "")
            for task in tasks["tasks"]
        ]  # fmt: skip
        body: list[str] = [_facts(about)]
        if not first:
            body.append("<h2>results</h2>")
            results = topics.results(self.machine, named)["results"][:JOBS_SHOWN]
            body.append(_references(found.spec.id, [ref for _, ref in results]))
        body.append("<h2>tasks</h2>")
        body.append(_table(("", "name", "executor", "state", "failed", "worker"), rows))
        body.append(_next("more tasks", "first", tasks["next"]))
        return self.page(request, f"job {found.number}", *body)


class TaskPage(Page):
    """One task in detail, with the reasons for its state."""

    def render_GET(self, request: Request) -> bytes:
        found, task = self.job(request), self.task(request)
        described = topics.answer(
            self.machine, "task", {"job": found.spec.id, "task": task.spec.id},
            self.service.now_s(),
        )  # fmt: skip
        inputs, outputs = described.pop("inputs"), described.pop("outputs")
        described = with_command(described)
        described["command_line"] = shlex.join(described["command_line"] or ())
        for name in ("started", "ended"):
            described[name] = _date(described.pop(f"{name}_at_s"))
        described = {key: _shown(value) for key, value in described.items()}
        return self.page(
            request, f"task {task.spec.name or task.spec.id}", _facts(described),
            "<h2>inputs</h2>", _references(found.spec.id, inputs),
            "<h2>outputs</h2>", _references(found.spec.id, outputs),
        )  # fmt: skip


class RefPage(Page):
    """One object, with its reference."""

    def render_GET(self, request: Request) -> bytes:
        found, ref = self.job(request), self.reference(request)
        node = self.machine.graph.objects.nodes[ref.id]
        producer = node.producer
        facts: dict[str, Any] = {"is": type(ref).__name__, **_about(ref)}
        if producer is not None:
            facts["produced by"] = _link(
                producer.spec.name or producer.spec.id, "task", producer.spec.job, producer.spec.id
            )
        facts["reference"] = str(to_array(ref))[:_SHOWN_MAX_LENGTH]
        back = Html(f"<p>{_link(f'job {found.number}', 'job', found.spec.id)}</p>")
        return self.page(request, ref.id, _facts(facts), back)


def _about(ref: Reference) -> dict[str, Any]:
    if isinstance(ref, Failure):
        return {"reason": ref.reason, "details": ref.text}
    facts: dict[str, Any] = {}
    if (size_bytes := getattr(ref, "size_bytes", None)) is not None:
        facts["bytes"] = size_bytes
    if places := locations_of(ref):
        facts["at"] = ", ".join(sorted(places)[:JOBS_SHOWN])
    return facts


def _references(job: str, refs: Iterable[Reference]) -> Html:
    rows = [
        (_link(ref.id, "ref", job, ref.id), type(ref).__name__,
         f"{ref.reason}: {ref.text}"[:_SHOWN_MAX_LENGTH] if isinstance(ref, Failure) else
         f"{ref.size_bytes} bytes" if isinstance(ref, Value) else "")
        for ref in refs
    ]  # fmt: skip
    return _table(("object", "is", ""), rows)


def _date(at_s: float | None) -> str:
    if at_s is None:
        return ""
    return datetime.fromtimestamp(at_s, UTC).isoformat(" ", "seconds")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return Html("<pre>" + "\n".join(escape(str(item)) for item in value) + "</pre>")
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return value


def _link(text: str, *path: str) -> Html:
    target = "/".join([ROOT, *[quote(part, safe=":") for part in path]])
    return Html(f'<a href="{escape(target)}">{escape(text)}</a>')


def _next(text: str, name: str, place: int | None) -> str:
    return "" if place is None else Html(f'<p><a href="?{name}={place}">{escape(text)}</a></p>')


def _facts(facts: dict[str, Any]) -> Html:
    return _table((), [(key, "" if value is None else value) for key, value in facts.items()])


def _table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> Html:
    lines = [f"<tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>"] if heads else []
    for row in rows:
        cells = [cell if isinstance(cell, Html) else escape(str(cell)) for cell in row]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return Html("<table>" + "\n".join(lines) + "</table>")


class Entrance(Route):
    """The login page of browsers, to which a link with a ticket leads.

    It sets the cookie, and redirects to the page of the job that the query names, or to the list of
    jobs.
    """

    needs_role = Role.READ

    def __init__(self, browsers: BrowserSessions) -> None:
        self._browsers = browsers

    def render_GET(self, request: Request) -> bytes:
        asked = request.args.get(b"job", [b""])[0].decode("utf-8", "replace")
        request.setHeader("Set-Cookie", self._browsers.open(time.time()))
        request.setHeader("Cache-Control", "no-store")
        request.setHeader("Referrer-Policy", "no-referrer")
        request.setHeader("Location", f"{ROOT}/job/{quote(asked, safe='')}")
        request.setResponseCode(303, b"See Other")
        return b""


def add_pages(routes: Routes, service: Any, browsers: BrowserSessions) -> None:
    """Add all pages to the routes."""
    routes.add(browsers.login_path, Entrance(browsers))
    routes.add(f"{ROOT}/job", JobsPage(service))
    routes.add(f"{ROOT}/job/{{job}}", JobPage(service))
    routes.add(f"{ROOT}/task/{{job}}/{{task}}", TaskPage(service))
    routes.add(f"{ROOT}/ref/{{job}}/{{id}}", RefPage(service))
