"""The standard includes: their texts, and the tasks that they create."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciel.core.refs import Future
from ciel.skywriting import standard
from ciel.skywriting.errors import ScriptError
from ciel.skywriting.script import check
from ciel_tests.skywriting.script_host import ScriptHost, encoded

FILES = Path(standard.__file__).parent / "library"


def test_the_names_are_those_of_the_files() -> None:
    assert {path.stem for path in FILES.iterdir()} == {*standard.NAMES, standard.PRELUDE}


@pytest.mark.parametrize("name", [*standard.NAMES, standard.PRELUDE])
def test_every_text_is_a_script_without_warnings(name: str) -> None:
    assert check(standard.text_of(name), name) == []


@pytest.mark.parametrize("name", ["", "grab.sw", "../standard", "/etc/passwd", "Grab", "x" * 1000])
def test_another_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(
        ScriptError, match="there are environ, grab, java, mapreduce, stdinout, sync"
    ):
        standard.text_of(name)


@pytest.mark.parametrize(
    "include, call, task",
    [
        ("stdinout", 'stdinout([argv[0]], ["cat", argv[0], 1])',
         ("stdinout", {"args": {"inputs": ["R"], "command_line": ["cat", "R", 1]},
                       "n_outputs": 1})),
        ("environ", 'environ([argv[0]], ["prog"], 3)',
         ("env", {"args": {"inputs": ["R"], "command_line": ["prog"]}, "n_outputs": 3})),
        ("java", 'java("Sort", [argv[0]], ["1"], [argv[0]], 2)',
         ("java", {"args": {"inputs": ["R"], "lib": ["R"], "class": "Sort", "argv": ["1"]},
                   "n_outputs": 2})),
        ("sync", "sync([argv[0]])", ("sync", {"args": {"inputs": ["R"]}, "n_outputs": 1})),
        ("grab", 'grab("http://h/x")',
         ("grab", {"args": {"urls": ["http://h/x"], "version": 0}, "n_outputs": 1,
                   "small_task": True})),
    ],
)  # fmt: skip
def test_an_include_asks_for_the_task_it_should(
    include: str, call: str, task: tuple[str, object]
) -> None:
    host = ScriptHost()
    ref = host.withhold()
    host.begin(f'include "{include}"; x = {call}; return [x];', argv=[ref])
    [(executor, keywords)] = host.tasks
    assert (executor, encoded(keywords)) == (task[0], encoded(task[1]).replace('"R"', encoded(ref)))


def test_grab_stops_until_the_reference_is_there() -> None:
    host = ScriptHost()
    there = host.put("5")
    asked = host.begin('include "grab"; return *grab("http://h/x");')
    [ref] = asked.awaited
    assert isinstance(ref, Future)
    host.settle(ref, encoded(there))
    assert host.finish(asked) == 5


def test_sync_waits_for_the_list_only() -> None:
    host = ScriptHost()
    task = host.begin('include "sync"; return sync([argv[0], argv[0]]);', argv=[host.withhold()])
    [ref] = task.awaited
    host.settle(ref, encoded([host.put("7"), 1]))
    assert host.value(host.finish(task)) == 7


def test_what_a_library_does_is_told_with_its_own_lines() -> None:
    with pytest.raises(ScriptError) as caught:
        ScriptHost().run('include "mapreduce";\nreturn map(lambda x: x[1], [[1]]);')
    report = str(caught.value)
    assert "test.sw, line 2" in report
    assert "called from mapreduce.sw, line " in report
    assert "in function map, called from test.sw, line 2" in report
