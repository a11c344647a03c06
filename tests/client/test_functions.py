"""When a function that was packed before is packed again: what is typed at a prompt may change."""

from __future__ import annotations

import gc
import os.path
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from ciel.client.functions import Functions
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference, Value
from ciel.python.tasks import USUAL

TYPED = """
import functools
import ciel

scale = 2
kinds = ["one"]
nothing = None

def inner(x):
    return x * scale

@ciel.task
def as_task(x):
    return inner(x)

def helper(x, also=inner):
    return x + 1

class Adder:
    @staticmethod
    def add(x):
        return helper(x)

adder = Adder()

def calls_helper(x):
    return helper(x)

def calls_task(x):
    return as_task(x)

def uses_class(x):
    return Adder.add(x)

def uses_instance(x):
    return adder.add(x)

def within(x):
    def later():
        return helper(x)
    return later()

def has_default(x, other=helper):
    return other(x)

partly = functools.partial(calls_helper, 3)

def early(x):
    return not_yet(x)

def uses_plain(x):
    return len(kinds), nothing

def recursive(x):
    return recursive(x - 1) + helper(x) if x else 0

def made():
    factor = 2
    def times(x):
        return helper(x) * factor
    def change(value):
        nonlocal factor
        factor = value
    return times, change

times, change = made()
"""


class Prompt:
    """A program's main module, into which lines are typed, and the functions it has called."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.type(TYPED)
        self.functions = Functions(self._upload)

    def _upload(self, content: bytes, name: str) -> Reference:
        return Value.of(ObjectId(name), content)

    def type(self, text: str) -> None:
        exec(text, self.names)

    def digest(self, name: str) -> bytes:
        return self.functions.find(self.names[name], USUAL).function.digest


@pytest.fixture
def prompt() -> Prompt:
    return Prompt()


@pytest.mark.parametrize(
    "name, typed",
    [
        ("calls_helper", "def helper(x): return x + 2"),
        ("calls_helper", "scale = 3"),  # through a default value
        ("calls_task", "def inner(x): return x"),
        ("calls_task", "scale = 2.5"),
        ("calls_task", "del scale"),
        ("uses_class", "def helper(x): return x + 2"),
        ("uses_class", "class Adder: add = staticmethod(lambda x: x)"),
        ("uses_instance", "def helper(x): return x + 2"),
        ("within", "def helper(x): return x + 2"),
        ("has_default", "scale = 3"),
        ("partly", "def helper(x): return x + 2"),
        ("early", "def not_yet(x): return x"),
        ("uses_plain", "kinds = ['two']"),
        ("uses_plain", "nothing = 1"),
        ("recursive", "def helper(x): return x + 2"),
        ("times", "def helper(x): return x + 2"),
        ("times", "change(3)"),
    ],
)
def test_a_function_is_packed_again_when_what_it_refers_to_was_said_anew(
    prompt: Prompt, name: str, typed: str
) -> None:
    before = prompt.digest(name)
    kept = prompt.functions.find(prompt.names[name], USUAL)
    assert prompt.functions.find(prompt.names[name], USUAL) is kept
    prompt.type(typed)
    after = prompt.digest(name)
    assert after != before
    assert prompt.digest(name) == after


def test_what_it_does_not_refer_to_is_of_no_account(prompt: Prompt) -> None:
    kept = prompt.functions.find(prompt.names["calls_helper"], USUAL)
    prompt.type("def other(x): pass\nkinds = 3\ndef calls_task(x): pass")
    assert prompt.functions.find(prompt.names["calls_helper"], USUAL) is kept


def test_a_variable_that_comes_to_lie_where_another_one_lay_is_noticed(prompt: Prompt) -> None:
    before = prompt.digest("within")
    for number in range(20):  # the interpreter uses memory again that has just become free
        prompt.type(f"def helper(x): return {number}")
    assert prompt.digest("within") != before


def test_a_list_that_has_grown_is_the_same_list(prompt: Prompt) -> None:
    before = prompt.digest("uses_plain")
    prompt.type("kinds.append('two')")
    assert prompt.digest("uses_plain") == before


def test_a_function_of_a_module_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions(lambda content, name: Value.of(ObjectId(name), content))
    kept = functions.find(os.path.join, USUAL)
    monkeypatch.setattr(os.path, "splitdrive", lambda path: path)  # it is found there by others
    assert functions.find(os.path.join, USUAL) is kept


def test_a_function_lives_no_longer_because_it_was_called(prompt: Prompt) -> None:
    def made() -> Callable[[int], int]:
        large = cloudpickle.CloudPickler  # something that can be referred to weakly

        def fact(x: int) -> int:
            return x * fact(x - 1) if x else len(str(large))

        return fact

    functions = prompt.functions
    function = made()
    functions.find(function, USUAL)
    gone = weakref.ref(function)
    del function
    gc.collect()
    assert gone() is None
    assert functions.known() == []
