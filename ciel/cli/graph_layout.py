"""Where the boxes of a graph are drawn: in layers from top to bottom, so that edges go down.

Pure, and the same for the same graph: every box lies below all that lead to it (the longest way
counts), the order within layers is found by sweeps over barycentres, which keep few crossings, and
boxes then move as near to their neighbours as their order lets them. Parts of a graph that nothing
connects are laid out each for itself, and packed like words on lines.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

from ciel.cli.graph_places import find_places

_LAYER_GAP: Final = 52
_SLOPE: Final = 0.12  # more room between layers where edges go far aside
_SLOPE_GAP_MAX: Final = 110
_PART_GAP: Final = 56
_ASPECT: Final = 1.6  # of a page of many parts
_SWEEPS: Final = 12
_SWEEPS_IN_VAIN: Final = 4
BENDS_MAX: Final = 20_000
"""Where edges pass layers, in one part; what exceeds it goes straight, behind the boxes."""


class Size(NamedTuple):
    """Of a box, in pixels."""

    width: int
    height: int


class Point(NamedTuple):
    """From the upper left corner of the page, in pixels."""

    x: int
    y: int


class Edge(NamedTuple):
    """Leads from one box to another, by their indices; edges of one tail and one bundle share their
    way as far as they can.
    """

    tail: int
    head: int
    bundle: int


class Layout(NamedTuple):
    """The upper left corner of each box; the points by which edges of one tail and bundle pass
    layers, from the tail on; and how many of these each edge goes along. One that goes up, in a
    circle, goes along none.
    """

    corners: list[Point]
    ways: dict[tuple[int, int], list[Point]]
    passed: list[int]
    size: Size


def lay_out(sizes: Sequence[Size], edges: Sequence[Edge]) -> Layout:
    """Find a place for each box, none over another."""
    corners = [Point(0, 0)] * len(sizes)
    ways: dict[tuple[int, int], list[Point]] = {}
    passed = [0] * len(edges)
    parts = [_Part(sizes, edges, boxes, inner) for boxes, inner in _parts(len(sizes), edges)]
    area = sum((part.size.width + _PART_GAP) * (part.size.height + _PART_GAP) for part in parts)
    line_width = max([sqrt(area * _ASPECT), *(part.size.width for part in parts)])
    x = y = line_height = width = 0
    for part in parts:
        if x and x + part.size.width > line_width:
            x, y, line_height = 0, y + line_height + _PART_GAP, 0
        for box, corner in part.corners():
            corners[box] = Point(corner.x + x, corner.y + y)
        for bundle, way in part.ways():
            ways[bundle] = [Point(point.x + x, point.y + y) for point in way]
        for edge, bends in part.passed.items():
            passed[edge] = 2 * bends
        line_height = max(line_height, part.size.height)
        width = max(width, x + part.size.width)
        x += part.size.width + _PART_GAP
    return Layout(corners, ways, passed, Size(width, y + line_height))


def _parts(count: int, edges: Sequence[Edge]) -> list[tuple[list[int], list[int]]]:
    """Return the connected parts: which boxes, and which edges, in the order of the first box."""
    leader = list(range(count))

    def find(box: int) -> int:
        while leader[box] != box:
            leader[box] = box = leader[leader[box]]
        return box

    for tail, head, _ in edges:
        one, other = sorted((find(tail), find(head)))
        leader[other] = one
    parts: dict[int, tuple[list[int], list[int]]] = {}
    for box in range(count):
        parts.setdefault(find(box), ([], []))[0].append(box)
    for index, edge in enumerate(edges):
        parts[find(edge.tail)][1].append(index)
    return list(parts.values())


class _Part:
    """One connected part. Its nodes are its boxes, and the bends at which edges pass layers."""

    def __init__(
        self, sizes: Sequence[Size], edges: Sequence[Edge], boxes: list[int], inner: list[int]
    ) -> None:
        self._boxes = boxes
        self._sizes: list[Size | None] = [sizes[box] for box in boxes]  # None: a bend
        node_of = {box: node for node, box in enumerate(boxes)}
        self._edges = {
            index: (node_of[edges[index].tail], node_of[edges[index].head], edges[index].bundle)
            for index in inner
        }
        self._layer, upward = _layers(len(boxes), list(self._edges.values()))
        self._down_edges = {
            index: edge
            for (index, edge), goes_up in zip(self._edges.items(), upward, strict=True)
            if not goes_up
        }
        self._above: list[list[int]] = [[] for _ in boxes]
        self._below: list[list[int]] = [[] for _ in boxes]
        self._trunks: dict[tuple[int, int], list[int]] = {}  # the bends of each bundle
        self.passed: dict[int, int] = {}  # how many of them each edge goes along
        self._add_bends()
        self._order = _Order(self._layer, self._above, self._below).best()
        widths = [None if size is None else size.width for size in self._sizes]
        self._x = find_places(self._order, widths, self._above, self._below)
        self._y, self._heights = self._stack()
        left = min(self._left(node) for node in range(len(self._x)))
        self._x = [x - left for x in self._x]
        right = max(round(self._left(node)) + self._width(node) for node in range(len(self._x)))
        self.size = Size(right, self._y[-1] + self._heights[-1])

    def corners(self) -> list[tuple[int, Point]]:
        """Each box with its upper left corner."""
        return [
            (box, Point(round(self._left(node)), self._y[self._layer[node]]))
            for node, box in enumerate(self._boxes)
        ]

    def ways(self) -> list[tuple[tuple[int, int], list[Point]]]:
        """Each bundle, by its tail's box, with where it enters and leaves the layers it passes."""
        ways = []
        for (tail, bundle), bends in self._trunks.items():
            way = []
            for bend in bends:
                x, layer = round(self._x[bend]), self._layer[bend]
                top = self._y[layer]
                way += [Point(x, top), Point(x, top + self._heights[layer])]
            ways.append(((self._boxes[tail], bundle), way))
        return ways

    def _width(self, node: int) -> int:
        size = self._sizes[node]
        return 0 if size is None else size.width

    def _left(self, node: int) -> float:
        return self._x[node] - self._width(node) / 2

    def _add_bends(self) -> None:
        """Have every link lead from one layer to the next, by a bend in each that is passed."""
        layer = self._layer
        heads: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for index, (tail, head, bundle) in self._down_edges.items():
            heads[tail, bundle].append((head, index))

        def length(trunk: tuple[int, int]) -> int:
            return max(layer[head] for head, _ in heads[trunk]) - layer[trunk[0]] - 1

        room = BENDS_MAX
        for trunk in sorted(heads, key=length):
            nodes = [trunk[0]]  # the tail, and a bend in each layer down to the last head's
            room -= length(trunk)
            for _ in range(length(trunk) if room >= 0 else 0):
                nodes.append(self._bend_below(nodes[-1]))
            self._trunks[trunk] = nodes[1:]
            linked: set[int] = set()
            for head, index in heads[trunk]:
                passed = layer[head] - layer[trunk[0]] - 1
                if passed < len(nodes):
                    self.passed[index] = passed
                    if head not in linked:
                        linked.add(head)
                        self._link(nodes[passed], head)

    def _bend_below(self, node: int) -> int:
        bend = len(self._layer)
        self._layer.append(self._layer[node] + 1)
        self._sizes.append(None)
        self._above.append([])
        self._below.append([])
        self._link(node, bend)
        return bend

    def _link(self, upper: int, lower: int) -> None:
        self._below[upper].append(lower)
        self._above[lower].append(upper)

    def _stack(self) -> tuple[list[int], list[int]]:
        """Return how far down each layer begins, and how high it is."""
        tops, heights = [], []
        y = 0
        for nodes in self._order:
            height = max([size.height for node in nodes if (size := self._sizes[node])], default=0)
            tops.append(y)
            heights.append(height)
            aside = max(
                [abs(self._x[node] - self._x[low]) for node in nodes for low in self._below[node]],
                default=0.0,
            )
            y += height + _LAYER_GAP + min(_SLOPE_GAP_MAX, round(aside * _SLOPE))
        return tops, heights


def _layers(count: int, edges: list[tuple[int, int, int]]) -> tuple[list[int], list[bool]]:
    """Return the layer of each node, by the longest way to it; and of each edge whether it has to
    go up, since it closes a circle.
    """
    below: list[list[int]] = [[] for _ in range(count)]
    above_left = [0] * count
    for tail, head, _ in edges:
        if tail != head:
            below[tail].append(head)
            above_left[head] += 1
    layer = [0] * count
    turn = [-1] * count  # when its layer was settled
    free = [node for node in reversed(range(count)) if not above_left[node]]
    stuck = iter(range(count))
    for place in range(count):
        if not free:  # a circle: it is cut above the first node that is left
            free.append(next(node for node in stuck if turn[node] < 0))
        node = free.pop()
        turn[node] = place
        for low in below[node]:
            if turn[low] < 0:
                layer[low] = max(layer[low], layer[node] + 1)
                above_left[low] -= 1
                if not above_left[low]:
                    free.append(low)
    upward = [turn[tail] >= turn[head] for tail, head, _ in edges]
    _sink_sources(layer, edges, upward)
    return layer, upward


def _sink_sources(layer: list[int], edges: list[tuple[int, int, int]], upward: list[bool]) -> None:
    """Move what nothing leads to right above the first that it leads to."""
    down = [edge for edge, goes_up in zip(edges, upward, strict=True) if not goes_up]
    reached = {head for _, head, _ in down}
    nearest: dict[int, int] = {}
    for tail, head, _ in down:
        if tail not in reached:
            nearest[tail] = min(layer[head], nearest.get(tail, layer[head]))
    for node, low in nearest.items():
        layer[node] = low - 1


class _Order:
    """The order within layers, changed as long as that leaves fewer crossings."""

    def __init__(self, layer: list[int], above: list[list[int]], below: list[list[int]]) -> None:
        self._above, self._below = above, below
        self._layers: list[list[int]] = [[] for _ in range(max(layer) + 1)]
        self._place = [0.0] * len(layer)
        self._fill(layer)

    def _fill(self, layer: list[int]) -> None:
        """Begin with a walk down from each source in turn, which already has trees uncrossed."""
        seen = [False] * len(layer)
        for source in sorted(range(len(layer)), key=lambda node: (layer[node], node)):
            pending = [source]
            while pending:
                node = pending.pop()
                if not seen[node]:
                    seen[node] = True
                    self._place[node] = len(self._layers[layer[node]])
                    self._layers[layer[node]].append(node)
                    pending += reversed(self._below[node])

    def best(self) -> list[list[int]]:
        """Return the nodes of each layer, from left to right."""
        best, fewest = self._copy(), self._crossings()
        in_vain = 0
        for sweep in range(_SWEEPS):
            if not fewest or in_vain == _SWEEPS_IN_VAIN:
                break
            if sweep % 2:
                for nodes in reversed(self._layers[:-1]):
                    self._sort(nodes, self._below)
            else:
                for nodes in self._layers[1:]:
                    self._sort(nodes, self._above)
            crossings = self._crossings()
            in_vain += 1
            if crossings < fewest:
                best, fewest, in_vain = self._copy(), crossings, 0
        return best

    def _copy(self) -> list[list[int]]:
        return [list(nodes) for nodes in self._layers]

    def _sort(self, nodes: list[int], neighbours: list[list[int]]) -> None:
        place = self._place

        def barycentre(node: int) -> float:
            near = neighbours[node]
            return sum([place[other] for other in near]) / len(near) if near else place[node]

        nodes.sort(key=barycentre)
        for index, node in enumerate(nodes):
            place[node] = index

    def _crossings(self) -> int:
        place, below = self._place, self._below
        crossings = 0
        for nodes in self._layers:
            ends: list[float] = []
            for node in nodes:
                lower = sorted([place[low] for low in below[node]])
                crossings += sum([len(ends) - bisect_right(ends, end) for end in lower])
                for end in lower:
                    insort(ends, end)
        return crossings
