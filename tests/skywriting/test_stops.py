"""Tests that a script has the same effects if it stops at every dereference.

Other tests limit the cost of continuations.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ciel.core.errors import CielError
from ciel.core.ids import ObjectId
from ciel.core.refs import Future, Reference
from ciel.skywriting import continuation, script
from ciel.skywriting.errors import ContinuationError, ScriptError
from ciel.skywriting.evaluation.code import Unit
from ciel.skywriting.evaluation.values import SpawnedCall
from ciel.wire import codec
from ciel.wire.errors import WireError
from ciel.wire.references import from_json, to_json

STOPS_MAX = 5_000
DEEDS_MAX = 300


def as_json(value: Any) -> bytes:
    return codec.encode(to_json(value))


def load(text: str) -> Unit:
    return script.load(text, "test.sw", {"ref": Future(ObjectId("script"))})


class TooLongError(Exception):
    """A program does too much for a test."""


class World:
    """Objects and tasks, in memory. With `stops`, nothing is there when it is first asked for, and
    after a stop only what that stop waits for: whatever was read before is gone again.
    """

    def __init__(self, unit: Unit, *, stops: bool) -> None:
        self.unit = unit
        self.stops = stops
        self.contents: dict[str, bytes] = {}
        self.calls: dict[str, Any] = {}
        self.tasks: dict[str, bytes] = {}  # the spawned tasks, by name
        self.lines: dict[str, list[str]] = {}  # what each task printed
        self.sizes: list[int] = []  # of continuations
        self.deeds = 0
        self.deeds_max = DEEDS_MAX

    def act(self) -> None:
        self.deeds += 1
        if self.deeds > self.deeds_max:
            raise TooLongError

    def load_unit(self, origin: Any) -> Unit:
        assert origin == self.unit.origin
        return self.unit

    def main(self) -> Any:
        """Run it, and then what nobody wanted, so that two runs can be compared."""
        task = Task(self, "main")
        value = self.finish(task, script.start(self.unit, {}, [], task))
        while left := self.calls.keys() - self.contents.keys():
            for object_id in left:
                self.make(object_id)
        return value

    def finish(self, task: Task, outcome: script.Outcome) -> Any:
        for _ in range(STOPS_MAX):
            if isinstance(outcome, script.Finished):
                return outcome.value
            written = continuation.encode(outcome)
            text = as_json(written.value)
            self.sizes.append(len(text))
            task.known = {ref.id for ref in written.awaited}
            for object_id in task.known - {"script"}:
                self.make(object_id)
            stopped = continuation.decode(from_json(codec.decode(text)), self.load_unit).stopped
            assert stopped is not None
            outcome = stopped.resume(task)
        raise AssertionError("it stops for ever")

    def make(self, object_id: str) -> bytes:
        content = self.contents.get(object_id)
        if content is None:
            task = Task(self, object_id)
            read = continuation.decode(self.calls[object_id], self.load_unit)
            assert read.call is not None
            content = as_json(self.finish(task, script.call(read.call, task)))
            self.contents[object_id] = content
        return content


class Task:
    """The world as one task sees it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.count = 0
        self.known: set[str] = set()

    def read(self, ref: Reference) -> bytes | None:
        if self.world.stops and ref.id not in self.known:
            return None
        return self.world.make(ref.id)

    def spawn(self, call: SpawnedCall) -> Reference:
        self.world.act()
        self.count += 1
        object_id = f"{self.name}.{self.count}"
        text = as_json(continuation.encode_call(call).value)
        assert object_id not in self.world.tasks, "spawned twice"
        self.world.tasks[object_id] = text
        self.world.calls[object_id] = from_json(codec.decode(text))
        return Future(ObjectId(object_id))

    def print(self, text: str) -> None:
        self.world.act()
        self.world.lines.setdefault(self.name, []).append(text)

    def decode(self, content: bytes) -> Any:
        return from_json(codec.decode(content))

    def encode(self, value: Any) -> str:
        return as_json(value).decode()

    def spawn_task(self, executor: str, keywords: dict[str, Any]) -> Reference | list[Reference]:
        raise AssertionError

    def include(self, what: str | Reference) -> Unit | None:
        raise AssertionError

    def package(self, key: str) -> Reference | None:
        raise AssertionError


# --- programs -------------------------------------------------------------------------------------


class Author:
    """Writes programs that do not go wrong: every variable has a kind, every loop an end."""

    def __init__(self, seed: int, budget: int) -> None:
        self.random = random.Random(seed)
        self.budget = budget  # of expressions with something in them
        self.count = 0

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def program(self) -> str:
        parts = ["function add(a, b) { print(a); return a + b; }",
                 "function sum_of(l) { t = 0; for (x in l) { t = t + x; } return t; }",
                 "function late(a) { r = spawn(add, [a, 1]); return *r + 1; }",
                 "function down(n) { if (n <= 0) { return 0; }"
                 " return 1 + down(n - 1) + *spawn(add, [n, 0]); }"]  # fmt: skip
        scope = Scope(["i"], ["l"], ["r"], ["f"], ["d"])
        parts += ["i = 3;", "l = [1, 2, 3];", "r = spawn(add, [1, 2]);",
                  "f = lambda x: x + i;", 'd = {"k": 1};']  # fmt: skip
        parts += self.statements(scope, 0, self.random.randint(2, 8))
        integers = " + ".join(scope.integers)
        refs = ", ".join(scope.refs)
        parts.append(
            f'return [{integers}, {", ".join(scope.lists)}, {refs}, d["k"], map(f, l), *r];'
        )
        return "\n".join(parts)

    def statements(self, scope: Scope, depth: int, count: int, in_loop: bool = False) -> list[str]:
        return [self.statement(scope, depth, in_loop) for _ in range(count)]

    def block(self, scope: Scope, depth: int, in_loop: bool = False) -> str:
        inner = scope.copy()
        count = self.random.randint(1, 3)
        return "{ " + " ".join(self.statements(inner, depth + 1, count, in_loop)) + " }"

    def statement(self, scope: Scope, depth: int, in_loop: bool) -> str:
        kinds = ["integer", "integer", "lazy", "append", "print", "ref", "list", "item", "key"]
        if depth < 3 and self.budget > 0:
            kinds += ["if", "while", "for", "do", "function", "pairs", "call"]
        if in_loop:
            kinds += ["break", "continue"]
        self.budget -= 1
        return str(getattr(self, "_" + self.random.choice(kinds))(scope, depth))

    def _integer(self, scope: Scope, depth: int) -> str:
        value = self.integer(scope)
        name = self.random.choice([*scope.integers, self.new("i")])
        scope.add("integers", name)
        return f"{name} = {value};"

    def _lazy(self, scope: Scope, depth: int) -> str:
        value = f"*{self.ref(scope)}"
        name = self.new("i")
        scope.add("integers", name)
        return f"{name} = {value};"

    def _append(self, scope: Scope, depth: int) -> str:
        return f"{self.random.choice(scope.lists)} += {self.integer(scope)};"

    def _item(self, scope: Scope, depth: int) -> str:
        name = self.random.choice(scope.lists)
        return f"{name}[len({name})] = {self.integer(scope)};"

    def _key(self, scope: Scope, depth: int) -> str:
        return f'{self.random.choice(scope.dicts)}["k"] = {self.integer(scope)};'

    def _print(self, scope: Scope, depth: int) -> str:
        return f"print({self.integer(scope)});"

    def _ref(self, scope: Scope, depth: int) -> str:
        value = self.ref(scope)
        name = self.new("r")
        scope.add("refs", name)
        return f"{name} = {value};"

    def _list(self, scope: Scope, depth: int) -> str:
        value = self.list(scope)
        name = self.new("l")
        scope.add("lists", name)
        return f"{name} = {value};"

    def _if(self, scope: Scope, depth: int) -> str:
        other = f" else {self.block(scope, depth)}" if self.random.random() < 0.5 else ""
        return f"if ({self.condition(scope)}) {self.block(scope, depth)}{other}"

    def _while(self, scope: Scope, depth: int) -> str:
        name = self.new("w")
        limit = self.random.randint(1, 3)
        body = self.block(scope, depth, True)
        test = f"{name} < {limit} && ({self.condition(scope)})"
        return f"{name} = 0; while ({test}) {{ {name} = {name} + 1; {body} }}"

    def _do(self, scope: Scope, depth: int) -> str:
        name = self.new("w")
        body = self.block(scope, depth, True)
        step = f"{name} = {name} + *spawn(add, [1, 0]);"
        return f"{name} = 0; do {{ {step} {body} }} while ({name} < 2);"

    def _for(self, scope: Scope, depth: int) -> str:
        name = self.new("i")
        values = f"range({self.random.randint(0, 3)})"
        if self.random.random() < 0.5:
            values = f"[{self.integer(scope)}, {self.integer(scope)}]"
        inner = scope.copy()
        inner.add("integers", name)
        return f"for ({name} in {values}) {self.block(inner, depth, True)}"

    def _pairs(self, scope: Scope, depth: int) -> str:
        key, value = self.new("k"), self.new("i")
        inner = scope.copy()
        inner.add("integers", value)
        pairs = f'{{"a": {self.integer(scope)}, "b": {self.integer(scope)}}}'
        return f"for ({key}, {value} in {pairs}) {self.block(inner, depth, True)}"

    def _break(self, scope: Scope, depth: int) -> str:
        return f"if ({self.condition(scope)}) {{ break; }}"

    def _continue(self, scope: Scope, depth: int) -> str:
        return f"if ({self.condition(scope)}) {{ continue; }}"

    def _function(self, scope: Scope, depth: int) -> str:
        name, parameter, local = self.new("f"), self.new("p"), self.new("q")
        inner = scope.copy()
        inner.add("integers", parameter)
        value = self.integer(inner)
        scope.add("functions", name)
        body = f"{local} = {value}; print({local}); return {local} + *spawn(add, [{parameter}, 1]);"
        return f"function {name}({parameter}) {{ {body} }}"

    def _call(self, scope: Scope, depth: int) -> str:
        function = self.random.choice(scope.functions)
        value = f"{function}({self.integer(scope)})"
        name = self.new("i")
        scope.add("integers", name)
        return f"{name} = {value};"

    def integer(self, scope: Scope) -> str:
        pick = self.random.random() if self.budget > 0 else self.random.random() * 0.4
        self.budget -= 1
        if pick < 0.2:
            return str(self.random.randint(0, 9))
        if pick < 0.4:
            return self.random.choice(scope.integers)
        one, two = self.integer(scope), self.integer(scope)
        if pick < 0.55:
            return f"({one} {self.random.choice('+-')} {two})"
        choices = [
            f"*{self.ref(scope)}", f"add({one}, {two})", f"sum_of({self.list(scope)})",
            f"late({one})", f"[{one}, {two}][1]", f'{{"k": {one}, "j": {two}}}["k"]',
            f"({one} + {two} - {self.integer(scope)} + {one})", f"len({self.list(scope)})",
            f"{self.random.choice(scope.functions)}({one})", f"-{one}", "down(2)",
            f"(lambda y: y + {one})({two})", f"reduce(add, {self.list(scope)}, {one})",
        ]  # fmt: skip
        return self.random.choice(choices)

    def list(self, scope: Scope) -> str:
        if self.budget <= 0 or self.random.random() < 0.4:
            return self.random.choice(scope.lists)
        self.budget -= 1
        one = self.integer(scope)
        return self.random.choice(
            [f"[{one}, {self.integer(scope)}]", f"range({self.random.randint(0, 4)})",
             f"({self.random.choice(scope.lists)} + [{one}])",
             f"map({self.random.choice(scope.functions)}, {self.random.choice(scope.lists)})"]
        )  # fmt: skip

    def ref(self, scope: Scope) -> str:
        if self.budget <= 0 or self.random.random() < 0.4:
            return self.random.choice(scope.refs)
        self.budget -= 1
        one = self.integer(scope)
        return self.random.choice(
            [f"spawn(add, [{one}, 1])", f"spawn({self.random.choice(scope.functions)}, [{one}])",
             "spawn(down, [1])", f"spawn(lambda: {one})"]
        )  # fmt: skip

    def condition(self, scope: Scope) -> str:
        one, two = self.integer(scope), self.integer(scope)
        return self.random.choice(
            [f"{one} < {two}", f"{one} == {two} || {two} >= 3", f"(!({one} > {two}))", "true"]
        )


class Scope:
    """Return the variables."""

    def __init__(self, *kinds: list[str]) -> None:
        self.integers, self.lists, self.refs, self.functions, self.dicts = map(list, kinds)

    def copy(self) -> Scope:
        return Scope(self.integers, self.lists, self.refs, self.functions, self.dicts)

    def add(self, kind: str, name: str) -> None:
        names = getattr(self, kind)
        if name not in names:
            names.append(name)


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=settings().max_examples * 5, deadline=None)
@given(seed=st.integers(0, 2**32), budget=st.integers(5, 60))
def test_stopping_everywhere_changes_nothing(seed: int, budget: int) -> None:
    unit = load(Author(seed, budget).program())
    at_once, stopping = World(unit, stops=False), World(unit, stops=True)
    try:
        value = at_once.main()
    except TooLongError:
        return
    assert stopping.main() == value
    assert stopping.tasks == at_once.tasks
    assert stopping.lines == at_once.lines
    assert stopping.sizes


# --- what a stop costs ----------------------------------------------------------------------------

LOOP = """
function next(n) { return n + 1; }
function loop(n) {
    total = 0; seen = {};
    for (i in range(n)) { total = *spawn(next, [total]); seen["last"] = total; }
    return total;
}
return loop(1000);
"""


def test_the_thousandth_continuation_of_a_loop_is_hardly_larger_than_the_tenth() -> None:
    world = World(load(LOOP), stops=True)
    world.deeds_max = 1_000
    assert world.main() == 1000
    assert len(world.sizes) == 1000
    assert world.sizes[-1] <= 1.2 * world.sizes[9] <= 1_200


def test_what_was_read_is_never_looked_for_again() -> None:
    """The script uses the value before and after another stop: the original then looped forever."""
    world = World(
        load("function f(n) { return n; } y = *spawn(f, [1]); a = y + 0; b = *spawn(f, [2]);"
             " return [a, b + 0, y];"), stops=True,
    )  # fmt: skip
    assert world.main() == [1, 2, 1]
    assert len(world.sizes) == 2


def test_what_is_starred_together_is_waited_for_together() -> None:
    world = World(
        load("function f(n) { return n; } x = *spawn(f, [1]); y = *spawn(f, [2]); return x + y;"),
        stops=True,
    )
    assert (world.main(), len(world.sizes)) == (3, 1)


def test_lists_that_were_one_are_one_after_a_stop() -> None:
    world = World(
        load("function f() { return [1]; } x = *spawn(f); y = x; x += 2; l = [x, x]; m = l;"
             " z = *spawn(f) + [0]; y += 3; m[0] += 0; l[1][0] = 9; return [x, y, l, z];".replace(
                 "m[0] += 0; ", "")), stops=True,
    )  # fmt: skip
    assert world.main() == [[9, 2, 3], [9, 2, 3], [[9, 2, 3], [9, 2, 3]], [1, 0]]


def test_a_list_that_grows_while_it_is_looped_over_is_looped_over_to_its_end() -> None:
    world = World(
        load("function f(n) { return n; } l = [1]; for (x in l) { if (len(l) < 4) "
             "{ l += *spawn(f, [x + 1]); } } return l;"), stops=True,
    )  # fmt: skip
    assert world.main() == [1, 2, 3, 4]


def test_a_value_that_contains_itself_survives_a_stop() -> None:
    world = World(
        load(
            "function f() { return 1; } l = [0]; l += l; x = *spawn(f) + 1;return len(l[1][1]) + x;"
        ),
        stops=True,
    )
    assert world.main() == 4


def test_an_integer_of_many_digits_survives_a_stop() -> None:
    text = "function f() { return 2; } x = 1; for (i in range(40000)) { x = x + x; }"
    assert World(load(text + "return x % *spawn(f);"), stops=True).main() == 0


# --- damage ---------------------------------------------------------------------------------------

SAMPLE = """
function f(n) { return n; }
g = lambda x: x + 1;
for (i in [1, 2]) {
    d = {"a": [i, g(i)], "b": *spawn(f, [i])};
    while (true) {
        if (d.b + *spawn(f, [1]) > 0 && true) { l = map(g, [*spawn(f, [2]), 3]); break; }
    }
}
return [d, l];
"""


def samples() -> list[Any]:
    """The continuations of a program, as JSON."""
    world = World(load(SAMPLE), stops=True)
    kept: list[Any] = []
    task = Task(world, "main")
    outcome = script.start(world.unit, {}, [], task)
    while isinstance(outcome, script.Stopped):
        written = continuation.encode(outcome)
        kept.append(to_json(written.value))
        task.known = {ref.id for ref in written.awaited}
        outcome = outcome.resume(task)
    return kept


def parts(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value, as what holds it and where."""
    found = []
    pending = [value]
    while pending:
        item = pending.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item))
        for key in keys:
            found.append((item, key))
            if isinstance(item[key], dict | list):
                pending.append(item[key])
    return found


WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    99,
    2.5,
    "x",
    [],
    {},
    [0],
    {"@": 0},
    {"@": 3},
    {"b": "len"},
]


@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_continuation_gives_an_error_or_a_value(seed: int) -> None:
    chance = random.Random(seed)
    value = chance.choice(samples())
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(parts(value))
        if chance.random() < 0.8 or isinstance(holder, list):
            holder[key] = copy.deepcopy(chance.choice(WRONG))
        else:
            del holder[key]
    world = World(load(SAMPLE), stops=False)
    task = Task(world, "main")
    try:
        stopped = continuation.decode(from_json(value), lambda origin: world.unit).stopped
        if stopped is not None:
            stopped.resume(task)
    except (ContinuationError, ScriptError, CielError, WireError, TooLongError):
        pass


def test_a_continuation_of_another_version_is_refused() -> None:
    with pytest.raises(ContinuationError, match="of version 2; do all workers run the same"):
        continuation.decode({"skywriting": 2}, load)
