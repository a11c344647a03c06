"""Parts of a bundle as tasks of their own: lots that were not begun go to whoever has room; and
where a program has died of a bundle, each of its calls runs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ciel.executors.programs.python.objects.outputs import encoded
from ciel.python.calls import Bundle, Call, Function, Use, pack_bundle

RETRIES_OF_LOTS = 2
"""Of several calls: if their program dies they run again, each alone; once more than usual, as the
first attempt may not have been counted.
"""


class _Inputs:
    """The inputs of a part, each once."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        self._arrays = arrays
        self._numbers: dict[Any, int] = {}
        self.items: list[Any] = []

    def number(self, item: Any) -> int:
        """Return the number of what this task has made."""
        if item not in self._numbers:
            self._numbers[item] = len(self.items)
            self.items.append(item)
        return self._numbers[item]

    def same(self, number: int) -> int:
        """Return the number of an input of the whole."""
        if number < 0:
            return number
        key = ("input", number)
        if key not in self._numbers:
            self._numbers[key] = len(self.items)
            self.items.append({"__ref__": self._arrays[number]})
        return self._numbers[key]


def told_of(
    bundle: Bundle,
    calls: Sequence[Call],
    arrays: Sequence[Any],
    made: Callable[[Use], tuple[Any, int]],
) -> dict[str, Any]:
    """Return what a task is spawned with that is to run some calls of a bundle. `arrays`: the
    bundle's inputs. `made`: says what holds what another call of the bundle makes, and where in it.
    """
    inputs = _Inputs(arrays)
    numbers = list(dict.fromkeys(call.function for call in calls))
    functions: list[Function] = []
    for number in numbers:
        function = bundle.functions[number]
        functions.append(function._replace(input=inputs.same(function.input)))
    written = []
    for call in calls:
        uses = tuple([_use(use, inputs, made) for use in call.uses])
        with_object = inputs.same(call.with_object)
        function_number = numbers.index(call.function)
        written.append(call._replace(function=function_number, uses=uses, with_object=with_object))
    part = bundle._replace(functions=tuple(functions), lots=(tuple(written),))
    told: dict[str, Any] = {"calls": encoded(pack_bundle(part)), "name": calls[0].name}
    if len(calls) > 1:
        told["name"] = f"{len(calls)} calls of {calls[0].name}"
        told |= {"retries": RETRIES_OF_LOTS, "sees_errors": True}
    if inputs.items:
        told["inputs"] = inputs.items
    return told


def _use(use: Use, inputs: _Inputs, made: Callable[[Use], tuple[Any, int]]) -> Use:
    if use.input >= 0:
        return use._replace(input=inputs.same(use.input))
    item, place = made(use)
    return Use(inputs.number(item), 0, place, False, use.how)
