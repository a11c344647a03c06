"""A job's graph as SVG: one page that needs nothing beside it, in light and dark.

Pure. Whatever a name holds, it is text here. States differ in colour, in the shape on the band, and
in words; lines in their dashes and in the shape that they begin with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, NamedTuple
from unicodedata import combining, east_asian_width

from ciel.cli.graph_layout import Edge, Layout, Point, Size, lay_out
from ciel.cli.graph_outline import Box, Kind, Port
from ciel.cli.graph_places import spread
from ciel.cli.graph_style import SHAPES, STYLE
from ciel.core.tasks import TaskState
from ciel.execution.report import visible, visible_text

BOXES_MAX: Final = 2000
LINES_MAX: Final = 20_000
"""More of either is only a texture."""

_MARGIN = 36
_HEAD_HEIGHT = 104  # heading and legend
_BAND = 26  # at the left of a box, with the state's shape
_PAD = 10
_STACK = 8  # what shows of the boxes behind the first of many
_BOX_WIDTH_MIN = 116
_BODY_HEIGHT = 46
_BAR_HEIGHT = 10
_STRIP_HEIGHT = 16  # where ports are labelled
_TITLE_COLUMNS, _TITLE_COLUMN = 26, 8.4  # how many at most, and how wide one is
_TEXT_COLUMNS, _TEXT_COLUMN = 60, 6.6
_HEADING_COLUMNS, _HEADING_COLUMN = 70, 10.0
_HEAD_GAP = 14  # between arrow heads
_TEXT_MAX_LENGTH = 4000  # of what is told of one box

_RESULT = "a result of the job"
_WORST_FIRST = ("failed", "cancelled", "assigned", "runnable", "waiting", "dormant", "done")
_LINES = {
    Kind.OBJECT: "is read by", Kind.SPAWN: "created", Kind.DELEGATE: "handed outputs over to",
}  # fmt: skip


class Heading(NamedTuple):
    """What stands above a graph."""

    title: str
    subtitle: str


def draw_svg(heading: Heading, boxes: Sequence[Box]) -> Iterator[str]:
    """Yield an SVG document in parts."""
    return _Page(heading, boxes).parts()


# --- text -----------------------------------------------------------------------------------------


def columns(text: str) -> int:
    """Return how many columns a text takes where letters are as wide as each other."""
    return sum([0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text])


def shorten(text: str, limit: int) -> str:
    """Return text of at most `limit` columns: its beginning and its end, which tell most."""
    shown = visible(text)
    if columns(shown) <= limit:
        return shown
    end = _fitting(reversed(shown), limit // 3)[::-1]
    return f"{_fitting(shown, limit - 1 - columns(end))}…{end}"


def _fitting(characters: Sequence[str] | Iterator[str], limit: int) -> str:
    taken = ""
    for character in characters:
        limit -= columns(character)
        if limit < 0:
            break
        taken += character
    return taken


def _text(x: float, y: float, style: str, text: str, anchor: str = "") -> str:
    style = f' class="{style}"' if style else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{_number(x)}" y="{_number(y)}"{style}{anchor}>{escape(visible(text))}</text>'


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _shape(state: str, x: float, y: float) -> str:
    solid = " solid" if state in ("assigned", "waiting") else ""
    at = f"translate({_number(x)} {_number(y)})"
    return f'<path class="shape{solid}" transform="{at}" d="{SHAPES[state]}"/>'


# --- boxes ----------------------------------------------------------------------------------------


class _Card:
    """A box with its measures and, once that is known, its place; `y` is where lines arrive."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.state = next((state for state in _WORST_FIRST if state in box.states), "given")
        self.is_stack = sum(box.states.values()) > 1
        self.title = shorten(box.title, _TITLE_COLUMNS)
        self.subtitle = shorten(box.subtitle, _TEXT_COLUMNS)
        self.ports = list(range(len(box.ports)))  # from left to right
        self.x = self.y = 0
        self._front = max(
            _BOX_WIDTH_MIN,
            _BAND + 2 * _PAD + round(columns(self.title) * _TITLE_COLUMN),
            _BAND + 2 * _PAD + round(columns(self.subtitle) * _TEXT_COLUMN),
            _BAND + round(sum(map(self._port_width, self.ports))),
        )
        height = _BODY_HEIGHT + _BAR_HEIGHT * self.is_stack
        height += _STRIP_HEIGHT * any(port.label for port in box.ports)
        self.size = Size(self._front + _STACK * self.is_stack, height + _STACK * self.is_stack)

    def _port_width(self, port: int) -> float:
        return columns(self.box.ports[port].label) * _TEXT_COLUMN + 16

    def port_place(self, port: int) -> Point:
        """Return where the lines of a port begin."""
        widths = [self._port_width(other) for other in self.ports]
        place = self.ports.index(port)
        left = self.x + _BAND + (self._front - _BAND - sum(widths)) / 2
        x = left + sum(widths[:place]) + widths[place] / 2
        return Point(round(x), self.y + self.size.height)

    def head_places(self, wanted: Sequence[int]) -> list[float]:
        """Return where lines arrive that would best arrive at `wanted`, from left to right."""
        left, right = self.x + 14.0, self.x + self.size.width - 14.0
        gap = min(_HEAD_GAP, (right - left) / max(len(wanted) - 1, 1))
        inside = [min(max(x, left), right) for x in wanted]
        places = spread(inside, [1.0] * len(wanted), [gap] * (len(wanted) - 1))
        last = len(places) - 1
        return [
            min(max(x, left + gap * place), right - gap * (last - place))
            for place, x in enumerate(places)
        ]

    def parts(self) -> Iterator[str]:
        box, x = self.box, self.x
        behind = _STACK * self.is_stack
        y, height = self.y + behind, self.size.height - behind
        about = escape(visible_text(box.about)[:_TEXT_MAX_LENGTH])
        yield f'<g class="{self.state}"><title>{about}</title>'
        for offset in range(behind, -1, -4):
            yield (
                f'<rect class="card" x="{x + offset}" y="{y - offset}" width="{self._front}" '
                f'height="{height}" rx="6"/>'
            )
        right = x + _BAND
        yield (
            f'<path class="band" d="M{right} {y}V{y + height}H{x + 6}a6 6 0 0 1-6-6V{y + 6}'
            f'a6 6 0 0 1 6-6Z"/>'
        )
        yield _shape(self.state, x + _BAND / 2, y + height / 2)
        yield _text(right + _PAD, y + 20, "title", self.title)
        yield _text(right + _PAD, y + 37, "", self.subtitle)
        yield "</g>"
        if self.is_stack:
            yield from self._bar(right + _PAD, y + 45)
        for port in self.ports:
            yield from _port(box.ports[port], self.port_place(port))

    def _bar(self, x: float, y: int) -> Iterator[str]:
        """Draw how the states share the tasks, the worst first; none is too few to be seen."""
        states = [state for state in _WORST_FIRST if state in self.box.states]
        room = self._front - _BAND - 2 * _PAD - 3 * len(states)
        count = sum(self.box.states.values())
        for state in states:
            width = 3 + room * self.box.states[state] / count
            yield (
                f'<g class="{state}"><rect class="band" x="{_number(x)}" y="{y}" '
                f'width="{_number(width - 1)}" height="5"/></g>'
            )
            x += width


def _port(port: Port, place: Point) -> Iterator[str]:
    """Draw where lines begin, and say what leads along them."""
    x, y = place
    title = f"<title>{escape(visible_text(port.about)[:_TEXT_MAX_LENGTH])}</title>"
    if port.label:
        yield _text(x, y - 10, "", port.label, "middle")
    if port.is_result:
        yield f'<g>{title}<circle class="result-port" cx="{x}" cy="{y}" r="5.5"/>'
        yield f'<circle class="result-dot" cx="{x}" cy="{y}" r="2.4"/></g>'
    elif port.kind is Kind.OBJECT:
        yield f'<circle class="object-port" cx="{x}" cy="{y}" r="4">{title}</circle>'
    else:
        style = f"{port.kind.value}-port"
        yield f'<path class="{style}" d="M{x} {y - 5}l5 5-5 5-5-5Z">{title}</path>'


# --- the page -------------------------------------------------------------------------------------


class _Line(NamedTuple):
    tail: int
    port: int
    head: int
    kind: Kind


class _Page:
    """All of one graph."""

    def __init__(self, heading: Heading, boxes: Sequence[Box]) -> None:
        self._title = shorten(heading.title, _HEADING_COLUMNS)
        self._subtitle = shorten(heading.subtitle, _HEADING_COLUMNS * 3 // 2)
        self._cards = [_Card(box) for box in boxes]
        self._lines = [
            _Line(tail, place, head, port.kind)
            for tail, box in enumerate(boxes)
            for place, port in enumerate(box.ports)
            for head in port.heads
        ]
        edges = [Edge(tail, head, port) for tail, port, head, _ in self._lines]
        layout = lay_out([card.size for card in self._cards], edges)
        self._legend_shown, legend_width = self._legend(_MARGIN, _MARGIN + 62)
        width = max(
            layout.size.width, legend_width,
            round(columns(self._title) * _HEADING_COLUMN),
            round(columns(self._subtitle) * _TEXT_COLUMN),
        )  # fmt: skip
        left = _MARGIN + (width - layout.size.width) // 2
        top = _MARGIN + _HEAD_HEIGHT
        self._size = Size(width + 2 * _MARGIN, top + layout.size.height + _MARGIN)
        self._passed = layout.passed
        self._ways = {
            bundle: [Point(x + left, y + top) for x, y in way]
            for bundle, way in layout.ways.items()
        }
        self._settle(layout, left, top)

    def _settle(self, layout: Layout, left: int, top: int) -> None:
        """Give cards their places, and have their ports in the order of where the lines lead."""
        aims: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for card, corner in zip(self._cards, layout.corners, strict=True):
            card.x, card.y = corner.x + left, corner.y + top
        for line, passed in zip(self._lines, self._passed, strict=True):
            head = self._cards[line.head]
            middle = head.x + head.size.width // 2
            aim = self._ways[line.tail, line.port][0].x if passed else middle
            aims[line.tail, line.port].append(aim)
        for number, card in enumerate(self._cards):
            places = [aims.get((number, port)) or [card.x] for port in card.ports]
            means = [sum(xs) / len(xs) for xs in places]
            card.ports.sort(key=means.__getitem__)

    def parts(self) -> Iterator[str]:
        width, height = self._size
        title = escape(self._title)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">\n<title>{title}</title>\n'
            f"<style>{STYLE}</style>\n<defs>"
        )
        for kind in Kind:
            style = "tip" if kind is Kind.OBJECT else "tip purple"
            yield (
                f'<marker id="{kind.value}" viewBox="0 0 8 8" refX="7.5" refY="4" '
                f'markerUnits="userSpaceOnUse" markerWidth="9" markerHeight="9" orient="auto">'
                f'<path class="{style}" d="M0 .5 8 4 0 7.5 1.5 4Z"/></marker>'
            )
        yield f'</defs>\n<rect class="page" width="{width}" height="{height}"/>\n'
        yield _text(_MARGIN, _MARGIN + 14, "heading", self._title)
        yield _text(_MARGIN, _MARGIN + 36, "", self._subtitle)
        yield from self._legend_shown
        yield "\n<g>\n"
        yield from self._line_parts()
        yield "</g>\n"
        for card in self._cards:
            yield from card.parts()
            yield "\n"
        yield "</svg>\n"

    def _line_parts(self) -> Iterator[str]:
        ways = {
            (tail, port): [self._cards[tail].port_place(port), *self._ways.get((tail, port), ())]
            for tail, port in dict.fromkeys([(line.tail, line.port) for line in self._lines])
        }
        arrivals: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, (line, passed) in enumerate(zip(self._lines, self._passed, strict=True)):
            arrivals[line.head].append((ways[line.tail, line.port][passed].x, number))
        arrive: dict[int, float] = {}
        for head, coming in arrivals.items():
            coming.sort()
            places = self._cards[head].head_places([x for x, _ in coming])
            arrive.update((number, x) for (_, number), x in zip(coming, places, strict=True))
        drawn: dict[tuple[int, int], int] = {}  # how much of a shared way is drawn already
        for number, (line, passed) in enumerate(zip(self._lines, self._passed, strict=True)):
            bundle = line.tail, line.port
            done = drawn.get(bundle, 0)
            way = ways[bundle][min(done, passed) : passed + 1]
            way.append(Point(round(arrive[number]), self._cards[line.head].y - 1))
            drawn[bundle] = max(done, passed)
            yield _line(line.kind, _way(way)) + "\n"

    def _legend(self, left: int, y: int) -> tuple[list[str], int]:
        """Say what shapes and lines mean that there are; return that, and how wide it is."""
        parts: list[str] = []
        x = float(left)
        for state in [*map(str, TaskState), "given"]:
            if any(state in card.box.states or state == card.state for card in self._cards):
                parts += [
                    f'<g class="{state}"><rect class="band" x="{_number(x)}" y="{y - 13}" '
                    f'width="18" height="18" rx="4"/>{_shape(state, x + 9, y - 4)}</g>',
                    _text(x + 24, y, "", state),
                ]
                x += 24 + columns(state) * _TEXT_COLUMN + 18
        ports = [port for card in self._cards for port in card.box.ports]
        for kind, words in _LINES.items():
            if any(port.kind is kind and port.heads for port in ports):
                at = f"{_number(x)} {y - 4}"
                parts += [_line(kind, f"M{at}h40"), _text(x + 48, y, "", words)]
                x += 48 + columns(words) * _TEXT_COLUMN + 18
        if any(port.is_result for port in ports):
            parts += _port(Port(Kind.OBJECT, "", True, (), ""), Point(round(x) + 6, y - 4))
            parts.append(_text(x + 18, y, "", _RESULT))
            x += 18 + columns(_RESULT) * _TEXT_COLUMN
        return parts, round(x) - left


def _line(kind: Kind, way: str) -> str:
    style = "line" if kind is Kind.OBJECT else f"line {kind.value}"
    return f'<path class="{style}" marker-end="url(#{kind.value})" d="{way}"/>'


def _way(points: Sequence[Point]) -> str:
    """Draw a line through points: upright where it passes a layer, and smooth in between."""
    (x, y), *rest = points
    parts = [f"M{x} {y}"]
    for next_x, next_y in rest:
        if next_x == x and next_y > y:
            parts.append(f"V{next_y}")
        else:
            lean = max(24, abs(next_y - y) // 2)
            parts.append(f"C{x} {y + lean} {next_x} {next_y - lean} {next_x} {next_y}")
        x, y = next_x, next_y
    return "".join(parts)
