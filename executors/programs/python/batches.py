"""Turns parts of a bundle into tasks.

It does so with batches that have not started, for workers with free slots; and with single calls,
after one of them has killed the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ciel.executors.programs.python.objects.outputs import encoded
from ciel.python.calls import Bundle, Call, Function, Use, pack_bundle

RETRIES_OF_BATCHES = 2
"""A batch of several calls is retried once more than usual, since the first attempt may not count.

A retry runs each call as a separate task.
"""


class _Inputs:
    """The inputs of a part of a bundle, without duplicates."""

    def __init__(self, refs: Sequence[Any]) -> None:
        self._refs = refs
        self._numbers: dict[Any, int] = {}
        self.items: list[Any] = []

    def number(self, item: Any) -> int:
        """Return the input number of an object that this task has created; add it if it is new."""
        if item not in self._numbers:
            self._numbers[item] = len(self.items)
            self.items.append(item)
        return self._numbers[item]

    def same(self, number: int) -> int:
        """Return the input number in the part for an input of the whole bundle; -1 stays -1."""
        if number < 0:
            return number
        key = ("input", number)
        if key not in self._numbers:
            self._numbers[key] = len(self.items)
            self.items.append({"__ref__": self._refs[number]})
        return self._numbers[key]


def request_for(
    bundle: Bundle,
    calls: Sequence[Call],
    refs: Sequence[Any],
    made: Callable[[Use], tuple[Any, int]],
) -> dict[str, Any]:
    """Return the arguments of a `spawn` for a task that runs some calls of a bundle.

    `refs`: the bundle's inputs. `made` returns which object contains the outcome of another call of
    the bundle, and at which place.
    """
    inputs = _Inputs(refs)
    numbers = list(dict.fromkeys(call.function for call in calls))
    functions: list[Function] = []
    for number in numbers:
        function = bundle.functions[number]
        functions.append(function._replace(input=inputs.same(function.input)))
    renumbered = []
    for call in calls:
        uses = tuple([_use(use, inputs, made) for use in call.uses])
        with_object = inputs.same(call.with_object)
        function_number = numbers.index(call.function)
        call = call._replace(function=function_number, uses=uses, with_object=with_object)
        renumbered.append(call)
    part = bundle._replace(functions=tuple(functions), batches=(tuple(renumbered),))
    request: dict[str, Any] = {"calls": encoded(pack_bundle(part)), "name": calls[0].name}
    if len(calls) > 1:
        request["name"] = f"{len(calls)} calls of {calls[0].name}"
        request |= {"retries": RETRIES_OF_BATCHES, "sees_errors": True}
    if inputs.items:
        request["inputs"] = inputs.items
    return request


def _use(use: Use, inputs: _Inputs, made: Callable[[Use], tuple[Any, int]]) -> Use:
    if use.input >= 0:
        return use._replace(input=inputs.same(use.input))
    item, place = made(use)
    return Use(inputs.number(item), 0, place, False, use.how)
