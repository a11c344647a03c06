"""The executor that a worker loads: it chooses the program of a task, and runs nothing itself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

from ciel.core.refs import REFERENCE_TYPES
from ciel.core.tasks import Mentions
from ciel.execution.executor import (
    Action,
    BadArgumentsError,
    ChildForm,
    Executor,
    Fail,
    Program,
    ProgramExit,
    Run,
    Task,
)

BAD_QUERY = 3  # the exit status of the program for errors that the query's author has to fix


class SqlExecutor(Executor):
    """Runs a query on tables; its output is a table, too.

    `tables` is an object of names and references to tables; the first line of a table names its
    columns. The configuration sets `time_limit_s`, under `[executors.sql]`.
    """

    name = "sql"
    mentions = Mentions.NOTHING  # its outputs name no other objects

    def __init__(self, *, time_limit_s: float = 60.0) -> None:
        self._time_limit_s = time_limit_s

    def missing(self, environ: Mapping[str, str]) -> str:
        if importlib.util.find_spec("_sqlite3") is None:
            return "this Python was built without sqlite3: install one that has it"
        return ""

    def child_form(self, keywords: dict[str, Any]) -> ChildForm:
        form = super().child_form(keywords)
        _query_of(form.arguments["args"])  # so that the spawn reports errors at once
        return form

    def begin(self, task: Task) -> Action:
        query, tables = _query_of(task.arguments.get("args"))
        program = Program(
            (sys.executable, "-m", "ciel_sql.query", query, str(self._time_limit_s)),
            stdout=0,  # standard output is output 0
            files={f"{name}.csv": ref.id for name, ref in tables.items()},
        )
        return Run(program)

    def ended(self, task: Task, program_exit: ProgramExit) -> Action:
        if program_exit.status == BAD_QUERY:
            return Fail("BAD_QUERY", "found something wrong with the query")
        return super().ended(task, program_exit)


def _query_of(args: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(args, dict) or not isinstance(args.get("query"), str):
        raise BadArgumentsError("'query' must be a text")
    query, tables = args["query"], args.get("tables", {})
    if not isinstance(tables, dict) or not all(name.isidentifier() for name in tables):
        raise BadArgumentsError("'tables' must be an object, its keys names")
    if not all(isinstance(ref, REFERENCE_TYPES) for ref in tables.values()):
        raise BadArgumentsError("'tables' must have references for values")
    return query, tables
