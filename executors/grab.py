"""The executor `grab`: fetches URLs, each into one object.

Arguments (`args`): `urls`, a list of strings, and optionally `version`, any value. Each URL has one
output: the JSON text of a reference to the fetched object. A program that stays running fetches
`http`, `https`, `ftp` and `file` (a file of the worker's host). `swbs://HOST:PORT/ID` names an
existing object: its output is a reference to that object, and nothing is fetched.

Tasks that a task spawns with equal arguments are one task within a job, which fetches its URLs
once. With another `version` the task is another one, which fetches them again.
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from ciel.core.refs import Reference
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Finish,
    Program,
    Talk,
    Task,
    simple_form,
)
from ciel.executors.arguments import args_of, require_form_count, require_output_count
from ciel.executors.proc import ProcExecutor
from ciel.wire import codec
from ciel.wire.references import to_json
from ciel.wire.sources import read_source

_PROGRAM = Program((sys.executable, "-P", "-m", "ciel.executors.programs.grab"))


class GrabExecutor(ProcExecutor):
    """Fetches URLs in a program; references to existing objects need none."""

    name = "grab"
    wants_package: ClassVar[bool] = False

    def begin(self, task: Task) -> Action:
        sources = _sources(args_of(task))
        require_output_count(task, len(sources))
        if not any(isinstance(source, str) for source in sources):
            return Finish({i: codec.encode(to_json(ref)) for i, ref in enumerate(sources)})
        message = {"proc_pargs": [], "proc_kwargs": {"urls": sources}}
        return Talk(_PROGRAM, message, self.name)

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        form = simple_form(self.name, keywords)
        args = form.arguments["args"]
        count = len(_sources(args))
        if "n_outputs" in keywords:
            require_form_count(self.name, form, count)
        return form._replace(arguments={"args": args}, n_outputs=count)


def _sources(args: dict[str, Any]) -> list[str | Reference]:
    """Return for each output a URL to fetch, or a reference to an existing object."""
    urls = args.get("urls")
    if not isinstance(urls, list) or not urls:
        raise BadArgumentsError("'urls' must be a list of at least one URL")
    return [_source(url) for url in urls]


def _source(url: Any) -> str | Reference:
    if not isinstance(url, str):
        raise BadArgumentsError(f"'urls' contains {url!r:.80}, which is not a string")
    try:
        return read_source(url)
    except ValueError as error:
        raise BadArgumentsError(f"{url!r:.200} in 'urls' {error}") from None
