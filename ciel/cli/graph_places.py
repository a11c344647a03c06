"""How far aside each node of a layered graph is drawn, once its order within its layer is known.

Pure. Nodes move in turn to where their neighbours would have them, as near as their order lets
them; at last the lines that pass layers are straightened where there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

BOX_GAP: Final = 30
_BEND_GAP: Final = 16  # beside a line that passes
_MOVES: Final = 6
_LAST_MOVES: Final = 2
_INERTIA: Final = 0.05
_PULLS: Final = (1.0, 0.5, 8.0)  # of a link between two boxes, a box and a bend, two bends

Widths = Sequence[int | None]
"""Of nodes; None for a bend, where a line passes a layer."""


def find_places(
    order: list[list[int]], widths: Widths, above: list[list[int]], below: list[list[int]]
) -> list[float]:
    """Return the middle of each node; neighbours in a layer keep their order and a gap."""
    return _Places(order, widths, above, below).x


class _Places:
    """The places of nodes; `order` has those of each layer, from left to right."""

    def __init__(
        self,
        order: list[list[int]],
        widths: Widths,
        above: list[list[int]],
        below: list[list[int]],
    ) -> None:
        self._order = order
        self._widths = widths
        self._above, self._below = above, below
        self._gaps = [[self._gap(a, b) for a, b in pairwise(nodes)] for nodes in order]
        self.x = [0.0] * len(widths)
        self._center()
        downwards, upwards = range(len(order)), range(len(order) - 1, -1, -1)
        for _ in range(_MOVES):
            self._move(downwards, above)
            self._move(upwards, below)
        for _ in range(_LAST_MOVES):
            self._move(downwards, above, below)
            self._move(upwards, above, below)
        self._straighten()

    def _gap(self, one: int, other: int) -> float:
        """How far apart the middles of two neighbours must be."""
        left, right = self._widths[one], self._widths[other]
        between = _BEND_GAP if left is None or right is None else BOX_GAP
        return ((left or 0) + (right or 0)) / 2 + between

    def _center(self) -> None:
        for nodes, gaps in zip(self._order, self._gaps, strict=True):
            at = -sum(gaps) / 2
            for node, gap in zip(nodes, [*gaps, 0.0], strict=True):
                self.x[node] = at
                at += gap

    def _move(self, layers: Sequence[int], *sides: list[list[int]]) -> None:
        """Move the nodes of each layer in turn to their neighbours on these sides."""
        x, widths = self.x, self._widths
        for layer in layers:
            wanted, weights = [], []
            for node in self._order[layer]:
                pulls = sorted(
                    [
                        (x[other], _PULLS[(widths[node] is None) + (widths[other] is None)])
                        for side in sides
                        for other in side[node]
                    ]
                )
                wanted.append(_median(pulls) if pulls else x[node])
                weights.append(sum([strength for _, strength in pulls]) or _INERTIA)
            places = spread(wanted, weights, self._gaps[layer])
            for node, place in zip(self._order[layer], places, strict=True):
                x[node] = place

    def _straighten(self) -> None:
        """Have each line pass as many layers as it can without a bend."""
        room = self._room()
        for top, width in enumerate(self._widths):
            if width is None and self._widths[self._above[top][0]] is not None:
                run: list[int] = []
                low, high = float("-inf"), float("inf")
                bend: int | None = top
                while bend is not None:
                    left, right = room(bend)
                    if max(low, left) > min(high, right):
                        self._align(run, low, high)
                        run, low, high = [], left, right
                    run.append(bend)
                    low, high = max(low, left), min(high, right)
                    lower = [node for node in self._below[bend] if self._widths[node] is None]
                    bend = lower[0] if lower else None
                self._align(run, low, high)

    def _align(self, run: list[int], low: float, high: float) -> None:
        middle = sorted([self.x[bend] for bend in run])[len(run) // 2]
        for bend in run:
            self.x[bend] = min(max(middle, low), high)

    def _room(self) -> Callable[[int], tuple[float, float]]:
        """Return what says between which places a node can be, by where its neighbours are now."""
        left: dict[int, tuple[int, float]] = {}
        right: dict[int, tuple[int, float]] = {}
        for nodes, gaps in zip(self._order, self._gaps, strict=True):
            for (one, other), gap in zip(pairwise(nodes), gaps, strict=True):
                left[other], right[one] = (one, gap), (other, gap)

        def room(node: int) -> tuple[float, float]:
            low, high = float("-inf"), float("inf")
            if node in left:
                neighbour, gap = left[node]
                low = self.x[neighbour] + gap
            if node in right:
                neighbour, gap = right[node]
                high = self.x[neighbour] - gap
            return min(low, self.x[node]), max(high, self.x[node])

        return room


def _median(pulls: list[tuple[float, float]]) -> float:
    """Return the middle of sorted places by their weights: means would make stairs of lines."""
    half = sum([weight for _, weight in pulls]) / 2
    passed = 0.0
    for index, (place, weight) in enumerate(pulls):
        passed += weight
        if passed == half:
            return (place + pulls[index + 1][0]) / 2
        if passed > half:
            return place
    raise AssertionError("weights are positive")


def spread(wanted: list[float], weights: list[float], gaps: list[float]) -> list[float]:
    """Return the places nearest to those wanted (by weighted squares) that keep the gaps.

    Without the gaps, places must not decrease: those who want it otherwise share one, the mean of
    what they want (isotonic regression).
    """
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    blocks: list[tuple[float, float, int]] = []  # sum of what is wanted, of weights, how many
    for want, weight, offset in zip(wanted, weights, offsets, strict=True):
        total, count = (want - offset) * weight, 1
        while blocks and blocks[-1][0] * weight >= total * blocks[-1][1]:
            before = blocks.pop()
            total, weight, count = total + before[0], weight + before[1], count + before[2]
        blocks.append((total, weight, count))
    places = [total / weight for total, weight, count in blocks for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets, strict=True)]
