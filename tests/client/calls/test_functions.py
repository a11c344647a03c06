"""Functions are packed again after a change, as of definitions at a prompt."""

from __future__ import annotations

import gc
import os.path
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from ciel.client.calls.functions import Functions
from ciel.core.ids import ObjectId
from ciel.core.refs import Reference, Value
from ciel.python.options import USUAL

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

CHANGED = """
import collections
import functools
import numpy as np
import pandas as pd

settings = {"rate": 1, "inner": {3}}
array = np.zeros(4)
frame = pd.DataFrame({"a": [1, 2]})
queue = collections.deque()
remembered = [0]

class Config:
    base = 1
    rates = []
    def __init__(self):
        self.rate = 1

config = Config()
config.inner = Config()

def uses_settings(_):
    return settings["rate"]

def uses_config(_):
    return config.rate

def uses_array(_):
    return array.sum()

def uses_frame(_):
    return frame.sum()

def uses_deque(_):
    return len(queue)

def counted(x=0):
    counted.count += 1

counted.count = 0

def collects(x=[]):
    return x

def times(x, by):
    return x * by

named = functools.partial(times, by=2)

@functools.lru_cache
def cached(x):
    return remembered[0]

def remembers(x):
    return cached(x)
"""


class Prompt:
    """A main module, in which lines are executed as at a prompt, and its packed functions."""

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
def test_a_function_is_packed_again_when_a_name_that_it_uses_is_redefined(
    prompt: Prompt, name: str, typed: str
) -> None:
    before = prompt.digest(name)
    kept = prompt.functions.find(prompt.names[name], USUAL)
    assert prompt.functions.find(prompt.names[name], USUAL) is kept
    prompt.type(typed)
    after = prompt.digest(name)
    assert after != before
    assert prompt.digest(name) == after


def test_changes_of_unused_variables_have_no_effect(prompt: Prompt) -> None:
    kept = prompt.functions.find(prompt.names["calls_helper"], USUAL)
    prompt.type("def other(x): pass\nkinds = 3\ndef calls_task(x): pass")
    assert prompt.functions.find(prompt.names["calls_helper"], USUAL) is kept


def test_a_new_object_at_the_address_of_an_old_one_is_noticed(prompt: Prompt) -> None:
    before = prompt.digest("within")
    for number in range(20):  # the interpreter reuses memory that was just freed
        prompt.type(f"def helper(x): return {number}")
    assert prompt.digest("within") != before


@pytest.mark.parametrize(
    "name, typed",
    [
        ("uses_plain", "kinds.append('two')"),
        ("uses_plain", "kinds[0] = 'two'"),
        ("uses_settings", "settings['rate'] = 2"),
        ("uses_settings", "settings['inner'].add(1)"),
        ("uses_settings", "settings['inner'] = set()"),
        ("uses_config", "config.rate = 2"),
        ("uses_config", "config.inner.rate = 2"),
        ("uses_config", "Config.base = 2"),
        ("uses_config", "Config.rates.append(1)"),
        ("uses_array", "array += 1"),
        ("uses_array", "array.shape = (2, 2)"),
        ("uses_frame", "frame.loc[0, 'a'] = 7"),
        ("uses_deque", "queue.append(1)"),
        ("counted", "counted.count = 1"),
        ("counted", "counted.__defaults__ = (1,)"),
        ("collects", "collects.__defaults__[0].append(1)"),
        ("named", "named.keywords['by'] = 3"),
        ("remembers", "remembered[0] = 1"),
    ],
)
def test_a_function_is_packed_again_when_something_in_it_has_changed(
    prompt: Prompt, name: str, typed: str
) -> None:
    prompt.type(CHANGED)
    before = prompt.digest(name)
    assert prompt.digest(name) == before
    prompt.type(typed)
    after = prompt.digest(name)
    assert after != before
    assert prompt.digest(name) == after


def test_a_function_whose_variables_cannot_be_compared_is_packed_once(
    prompt: Prompt,
) -> None:
    prompt.type(CHANGED)
    kept = prompt.functions.find(prompt.names["uses_frame"], USUAL)
    assert prompt.functions.find(prompt.names["uses_frame"], USUAL) is kept


def test_the_object_of_a_large_function_is_dropped_with_it(prompt: Prompt) -> None:
    dropped: deque[Reference] = deque()
    functions = Functions(lambda content, name: Value.of(ObjectId("1"), b""), dropped)
    prompt.type("large = functools.partial(print, 'x' * 10_000)")
    packed = functions.find(prompt.names["large"], USUAL)
    prompt.type("del large")
    assert not dropped  # a call may still refer to it
    del packed
    gc.collect()
    assert [ref.id for ref in dropped] == ["1"]


def test_a_function_of_a_module_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = Functions(lambda content, name: Value.of(ObjectId(name), content))
    kept = functions.find(os.path.join, USUAL)
    monkeypatch.setattr(os.path, "splitdrive", lambda path: path)  # a worker finds it by its name
    assert functions.find(os.path.join, USUAL) is kept


def test_a_function_lives_no_longer_because_it_was_called(prompt: Prompt) -> None:
    def made() -> Callable[[int], int]:
        large = cloudpickle.CloudPickler  # an object that allows weak references

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
