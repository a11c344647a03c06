"""Tests which built-in functions wait for futures, run once however often a script is resumed, and
refuse results that are too large. The scripts in `conformance/` and `errors/` test the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ciel.core.refs import Concrete, Failure, Reference
from ciel.skywriting.builtins import prelude
from ciel.skywriting.builtins.modern import MODERN
from ciel.skywriting.builtins.original import ORIGINAL, VERSION_2
from ciel.skywriting.errors import ScriptError
from ciel.skywriting.evaluation import showing
from ciel.skywriting.evaluation.results import DEPTH_MAX, VALUES_MAX, extent, require_result
from ciel.skywriting.evaluation.values import LIST_MAX_ITEMS, TEXT_MAX_CHARACTERS, Builtin
from ciel_tests.skywriting.script_host import ScriptHost, ScriptTask, Stops

PROMISED = [
    "null", "split", "join", "replace", "trim", "startswith", "map", "filter", "reduce", "sort",
    "keys", "values", "min", "max", "sum", "zip", "enumerate", "select", "is_future", "is_error",
    "try_deref", "json", "read", "lines", "float", "to_json", "abs", "floor", "round", "sqrt",
    "endswith", "find", "lower", "upper", "contains", "slice", "reversed",
]  # fmt: skip


@pytest.fixture
def host() -> ScriptHost:
    return ScriptHost()


def begun(host: ScriptHost, expression: str, *refs: Reference) -> ScriptTask:
    """Run a script that gives an expression in `a`, `b` and `c`, to its first stop."""
    given = "".join(f"{name} = argv[{i}]; " for i, name in enumerate("abc"[: len(refs)]))
    return host.begin(f"{given} return {expression};", argv=refs)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_every_promised_name_is_there(version: int) -> None:
    assert set(PROMISED) <= set(prelude.names(version))


@pytest.mark.parametrize("name", PROMISED)
def test_new_names_may_be_assigned_in_functions(host: ScriptHost, name: str) -> None:
    assert host.run(f"f = function() {{ {name} = 5; return {name}; }}; return f();") == 5


@pytest.mark.parametrize("name", ORIGINAL)
def test_names_of_the_original_may_not(host: ScriptHost, name: str) -> None:
    with pytest.raises(ScriptError, match=f'assigns "{name}", which is bound outside of it'):
        host.run(f"f = function() {{ {name} = 5; return {name}; }}; return f();")


def test_a_continuation_can_find_every_built_in_by_its_own_name() -> None:
    for table in (ORIGINAL, MODERN, VERSION_2):
        for value in table.values():
            if isinstance(value, Builtin):
                found = prelude.names(1).get(value.name) or prelude.names(2)[value.name]
                assert found is value


# --- what waits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression", ["read(a)", "lines(a)[0]", "try_deref(a)", "*a", "is_error(a)"]
)
def test_what_needs_an_object_waits_for_it(host: ScriptHost, expression: str) -> None:
    ref = host.withhold()
    task = begun(host, expression, ref)
    assert task.awaited == [ref]
    host.settle(ref, '"text"')
    expected = {"*a": "text", "try_deref(a)": "text", "is_error(a)": False}
    assert host.finish(task) == expected.get(expression, '"text"')


def test_a_script_waits_at_once_for_all_that_it_starred(host: ScriptHost) -> None:
    refs = [host.withhold() for _ in range(3)]
    task = host.begin("x = *argv[0]; y = *argv[1]; z = x + y; return z + *argv[2];", argv=refs)
    assert task.awaited == refs[:2]
    host.settle(refs[0], "1")
    assert not task.can_go_on
    host.settle(refs[1], "2")
    host.settle(refs[2], "3")
    assert host.finish(task) == 6
    assert task.steps == 2


def test_is_future_does_not_wait(host: ScriptHost) -> None:
    pending, there, failed = host.withhold(), host.withhold(), host.withhold()
    host.settle(there, "1")
    host.fail(failed)
    task = begun(host, "map(is_future, argv)", pending, there, failed)
    assert host.finish(task) == [True, False, False]


def test_what_is_known_of_a_reference_is_not_read(host: ScriptHost) -> None:
    ref = Concrete(host.withhold().id, 5, frozenset(("here:1",)))
    failure = Failure(host.withhold().id, "RUNTIME_ERROR", "")
    expression = "[is_future(a), is_error(a), select([a, b]), is_error(b), try_deref(b, 5)]"
    assert host.finish(begun(host, expression, ref, failure)) == [False, False, [0, 1], True, 5]
    assert host.reads == {}


def test_select_waits_for_one_and_gives_all_that_are_there(host: ScriptHost) -> None:
    refs = [host.withhold() for _ in range(3)]
    task = begun(host, "[select([a, b, c]), is_future(a)]", *refs)
    assert task.awaited == refs
    host.settle(refs[2], "1")
    host.fail(refs[1])
    assert host.finish(task) == [[1, 2], True]


def test_what_select_does_not_wait_for_is_not_waited_for(host: ScriptHost) -> None:
    starred, chosen = host.withhold(), host.withhold()
    task = host.begin("x = *argv[0]; i = select([argv[1]]); return i;", argv=[starred, chosen])
    assert task.awaited == [chosen]
    host.settle(chosen, "1")
    assert host.finish(task) == [0]


def test_is_error_and_try_deref_wait_until_it_is_known(host: ScriptHost) -> None:
    ref = host.withhold()
    first, second = begun(host, "is_error(a)", ref), begun(host, 'try_deref(a, "default")', ref)
    assert (first.awaited, second.awaited) == ([ref], [ref])
    host.fail(ref)
    assert (host.finish(first), host.finish(second)) == (True, "default")


def test_a_value_that_was_read_is_never_read_again() -> None:
    host = ScriptHost(Stops.ALWAYS)
    text = """
        y = *spawn(lambda : 1, []);
        total = y;
        for (i in range(5)) { total += y + *spawn(lambda x: x, [i]); }
        return total + y;
    """
    assert host.run(text) == 1 + 5 + 10 + 1
    assert set(host.reads.values()) == {1}


@pytest.mark.parametrize("stops", Stops)
def test_every_effect_happens_once(stops: Stops) -> None:
    host = ScriptHost(stops)
    host.executors["note"] = lambda keywords: ["1"]
    text = """
        shout = function(x) { print("shout " + str(x)); return *exec("note", {"x": x}, 1)[0] + x; };
        f = function(x) { print("task " + str(x)); return shout(x); };
        include "mapreduce";
        refs = map(lambda x: spawn(f, [x]), [1, 2]);
        return [shout(10) + *refs[0], [*refs[1], shout(20)], {"k": shout(30)}];
    """
    assert host.run(text) == [11 + 2, [3, 21], {"k": 31}]
    expected = ["shout 1", "shout 10", "shout 2", "shout 20", "shout 30", "task 1", "task 2"]
    assert sorted(host.printed) == expected
    assert sorted(keywords["args"]["x"] for _, keywords in host.tasks) == [1, 2, 10, 20, 30]
    assert (len(host.calls), host.included) == (2, ["mapreduce"])


# --- delegation -----------------------------------------------------------------------------------


def test_exec_says_that_a_task_is_small_and_spawn_exec_does_not(host: ScriptHost) -> None:
    host.run('return [exec("a", {"k": 1}, 2), spawn_exec("b", {}, 1)];')
    host.run('return spawn_other("c", {"n_outputs": 3});')
    assert host.tasks == [
        ("a", {"args": {"k": 1}, "n_outputs": 2, "small_task": True}),
        ("b", {"args": {}, "n_outputs": 1}),
        ("c", {"n_outputs": 3}),
    ]


def test_one_bare_reference_makes_a_list_of_exec_only(
    host: ScriptHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = host.put("1")
    monkeypatch.setattr(ScriptTask, "spawn_task", lambda *_: ref)
    found = host.run(
        'return [exec("proc", {}, 1), spawn_exec("proc", {}, 1), spawn_other("proc", {})];'
    )
    assert found == [[ref], [ref], ref]


# --- limits of size -------------------------------------------------------------------------------


def builtin(name: str) -> Callable[..., Any]:
    function = prelude.names(1)[name].function
    task = ScriptTask(ScriptHost(), "root:test", "")
    return lambda *arguments: function(task, list(arguments))


HALF = "a" * (TEXT_MAX_CHARACTERS // 2)


@pytest.mark.parametrize(
    "name, arguments, message",
    [
        ("join", ["", [HALF, HALF, "a"]], "a string may have at most"),
        ("join", ["-" * 1000, [""] * 70_000], "a string may have at most"),
        ("replace", [HALF, "a", "abc"], "a string may have at most"),
        ("split", ["," * (LIST_MAX_ITEMS + 1), ","], "a list may have at most"),
        ("int", ["9" * 100_001], "at most 100,000 digits"),
        ("str", [1 << 400_000], "more than 100,000 digits cannot be shown"),
        ("str", [[HALF, HALF, HALF]], "longer than 67,108,864 characters"),
        ("float", [1 << 2000], "needs a number that fits a float"),
        ("sqrt", [1 << 4000], "needs a number that fits a float"),
        ("sum", [[1e308, 1e308]], "too large for a float"),
        ("round", [1.5, 10_000], "places is not possible"),
    ],
)  # fmt: skip
def test_a_limit_is_an_error(name: str, arguments: list[Any], message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        builtin(name)(*arguments)


@pytest.mark.slow
def test_what_is_just_within_a_limit_is_none() -> None:
    assert len(builtin("join")("", [HALF, HALF])) == TEXT_MAX_CHARACTERS
    digits = "9" * 100_000
    assert builtin("str")(builtin("int")(digits)) == digits


def bomb(levels: int) -> list[Any]:
    """A list that takes no memory, and has more items in it than there are atoms."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value, value]
    return value


def test_what_is_shared_beyond_measure_is_refused_at_once(host: ScriptHost) -> None:
    assert extent(bomb(300)).values > 2**300
    with pytest.raises(ScriptError, match="would be longer than"):
        showing.original(bomb(300))
    with pytest.raises(ScriptError, match=f"more than {VALUES_MAX:,} values"):
        require_result(bomb(100))
    with pytest.raises(ScriptError, match="as arguments of a task"):
        builtin("exec")("echo", {"l": bomb(100)}, 1)


def test_depth_makes_no_difference_to_text() -> None:
    value: list[Any] = []
    for _ in range(20_000):
        value = [value]
    assert showing.original(value) == showing.version_2(value) == "[" * 20_001 + "]" * 20_001


def test_what_is_too_deep_or_within_itself_is_no_result() -> None:
    value: list[Any] = []
    for _ in range(DEPTH_MAX - 1):
        value = [value]
    assert require_result(value) is value
    with pytest.raises(ScriptError, match=f"nested more than {DEPTH_MAX} levels deep"):
        require_result([value])
    value.append({"k": value})
    with pytest.raises(ScriptError, match="a list that contains itself"):
        require_result(value)


def test_extent_counts_what_is_shared_as_often_as_it_is_written() -> None:
    inner = [1, 2]
    assert extent([inner, {"a": inner, "b": 3}]) == (9, 3, False)
    inner.append(inner)  # type: ignore[arg-type]  # a script's lists hold anything
    assert extent([inner]).contains_itself


# --- as text --------------------------------------------------------------------------------------


def test_a_reference_looks_the_same_whatever_is_known_of_it(host: ScriptHost) -> None:
    future = host.withhold()
    concrete = Concrete(future.id, 5, frozenset(("here:1",)))
    for show in (showing.original, showing.version_2):
        assert show(future) == show(concrete) == f"<reference {future.id}>"
        assert show([future]) == f"[<reference {future.id}>]"


def test_functions_are_shown_by_name(host: ScriptHost) -> None:
    text = "function f() { return 1; } return [str(f), str([lambda : 1]), str(len), str({1: f})];"
    expected = ["<function f>", "[<function>]", "<function len>", "{1: <function f>}"]
    assert host.run(text) == expected
    assert host.run("#!skywriting 2\n" + text)[1] == "[<function>]"


def test_a_reference_in_json_is_one_again(host: ScriptHost) -> None:
    ref = host.put("[5]")
    assert host.run("return *(json(to_json([argv[0]]))[0]);", argv=[ref]) == [5]
