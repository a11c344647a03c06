"""The world in memory in which scripts are tested: that it tells the truth."""

from __future__ import annotations

import pytest

from ciel.skywriting.errors import ReferenceFailedError, ScriptError
from ciel_tests.skywriting.script_host import ScriptHost, StillWaitingError, Stops

TREE = """
    function tree(n) {
      print("n" + str(n));
      if (n == 0) { return 1; }
      left = spawn(tree, [n - 1]);
      right = spawn(tree, [n - 1]);
      return *left + *right;
    }
    return tree(3);
"""


@pytest.mark.parametrize("stops", Stops)
def test_the_same_tasks_with_the_same_names_however_scripts_stop(stops: Stops) -> None:
    hosts = [ScriptHost(Stops.NEEDED), ScriptHost(stops)]
    assert [host.run(TREE) for host in hosts] == [8, 8]
    assert hosts[0].calls == hosts[1].calls
    assert len(hosts[1].calls) == 14
    assert sorted(hosts[0].printed) == sorted(hosts[1].printed)


def test_a_script_stops_as_often_as_it_was_asked_to() -> None:
    text = "x = *argv[0] + 1; y = *spawn(lambda : 1, []) + 1; return x + y;"
    stopped = {}
    for stops in Stops:
        host = ScriptHost(stops)
        assert host.run(text, argv=[host.put("1")]) == 4
        stopped[stops] = len(host.continuations)
    assert stopped == {Stops.NEVER: 0, Stops.NEEDED: 1, Stops.ALWAYS: 2}


def test_a_task_that_nobody_needs_does_not_run_until_all_do() -> None:
    host = ScriptHost()
    text = 'f = function() { print("ran"); return 1; }; r = spawn(f, []); return [r];'
    [ref] = host.run(text)
    assert (host.printed, len(host.calls), host.is_settled(ref)) == ([], 1, False)
    host.exhaust()
    assert (host.printed, host.value(ref)) == (["ran"], 1)


def test_a_script_that_needs_what_is_withheld_does_not_end() -> None:
    host = ScriptHost()
    ref = host.withhold()
    task = host.begin("f = function(r) { return *r; }; return *spawn(f, [argv[0]]);", argv=[ref])
    with pytest.raises(StillWaitingError, match="waits for"):
        host.finish(task)
    host.settle(ref, "5")
    assert host.finish(task) == 5


def test_a_failed_child_tells_its_story() -> None:
    host = ScriptHost()
    with pytest.raises(ScriptError, match=r"(?s)RUNTIME_ERROR.*index 3 is outside"):
        host.run("f = function() { return [][3]; }; return *spawn(f, []);")


def test_an_executor_may_be_stood_in_for() -> None:
    host = ScriptHost()
    host.executors["upper"] = lambda keywords: [keywords["args"]["text"].upper(), None]
    good, bad = host.run('return exec("upper", {"text": "ab"}, 2);')
    assert host.content(good) == b"AB"
    with pytest.raises(ReferenceFailedError, match="exit status 1"):
        host.content(bad)


def test_what_other_executors_make_is_withheld() -> None:
    host = ScriptHost()
    task = host.begin('return *exec("nobody", {}, 1)[0];')
    [ref] = task.awaited
    host.settle(ref, "3")
    assert host.finish(task) == 3


def test_scripts_come_from_the_web_from_objects_and_from_the_library() -> None:
    host = ScriptHost(Stops.ALWAYS)
    host.web["http://h/a.sw"] = "a = 1;"
    host.package["lib"] = host.withhold()
    host.settle(host.package["lib"], "b = 2;")
    text = 'include "http://h/a.sw"; include package("lib"); include "mapreduce"; '
    assert host.run(text + "return map(lambda x: x + a + b, [1]);") == [4]
    assert len(host.included) == 3
