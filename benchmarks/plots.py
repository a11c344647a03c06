"""Creates the plots and tables of docs/measured.

Plots are charts of lines or bars in SVG for light and dark backgrounds; tables are written between
marks in the text of a page.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import log2
from pathlib import Path

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 50, 55
COLOURS = ("#c0392b", "#2471a3", "#d68910", "#1e8449", "#7d3c98", "#616a6b")
MARKS = 5  # about so many lines across
ROW = 44  # the least height of a bar with its name
FONT = "font-family='sans-serif' fill='#777'"

Points = Sequence[tuple[float, float]]
DOCS = Path(__file__).parent.parent / "docs" / "measured"


def write_down(page: str, mark: str, content: str, charts: Mapping[str, str]) -> None:
    """Replace the text of a page between the marks of that name, and charts by their names.

    Do nothing if the page does not exist, as in an installed tree.
    """
    text = DOCS / f"{page}.md"
    if not text.exists():
        return
    for name, chart in charts.items():
        (DOCS / f"{name}.svg").write_text(chart)
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->"
    before, _, rest = text.read_text().partition(begin)
    text.write_text(f"{before}{begin}{content}\n{end}{rest.partition(end)[2]}")


FIGURE = re.compile(r"<!--=(\w+)-->(.*?)<!--=-->", re.DOTALL)
"""A figure in the prose of a page: its name, and its text."""


def write_figures(page: str, figures: Mapping[str, str]) -> None:
    """Replace the figures in the prose of a page, so that it cannot contradict the tables.

    Do nothing if the page does not exist. Raises KeyError for a figure that is not given.
    """
    path = DOCS / f"{page}.md"
    if path.exists():
        path.write_text(with_figures(path.read_text(), figures))


def with_figures(text: str, figures: Mapping[str, str]) -> str:
    """Return a text whose figures have these values; raises as `write_figures`."""
    return FIGURE.sub(lambda found: f"<!--={found[1]}-->{figures[found[1]]}<!--=-->", text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace(" --- ", "---")


def line_chart(
    title: str, x_name: str, y_name: str, series: Mapping[str, Points], *, by_doubling: bool = False
) -> str:
    """Draw each series as a line with its name at its end; y starts at zero.

    With `by_doubling`, each doubling of x takes the same width.
    """
    scale: Callable[[float], float] = log2 if by_doubling else float
    xs = sorted({x for points in series.values() for x, _ in points})
    first, last = scale(xs[0]), scale(xs[-1])
    step = _step(max(y for points in series.values() for _, y in points) / MARKS)
    marks = int(max(y for points in series.values() for _, y in points) / step) + 1

    def at_x(x: float) -> float:
        return LEFT + (scale(x) - first) / ((last - first) or 1) * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - y / (marks * step) * (HEIGHT - TOP - BOTTOM)

    parts = [_text(LEFT, 25, title, size=15)]
    for mark in range(marks + 1):
        y = at_y(mark * step)
        parts.append(f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='#999' stroke-width='.4'/>")
        parts.append(_text(LEFT - 8, y + 4, f"{mark * step:g}", anchor="end"))
    parts += [_text(at_x(x), HEIGHT - BOTTOM + 18, f"{x:g}", anchor="middle") for x in xs]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(_text(middle, HEIGHT - 14, x_name, anchor="middle"))
    parts.append(_text(LEFT - 8, TOP - 10, y_name))
    ends = _apart([at_y(points[-1][1]) for points in series.values()])
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in points)
        parts.append(f"<path d='M{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        parts += [f"<circle cx='{at_x(x):.1f}' cy='{at_y(y):.1f}' r='3' fill='{colour}'/>"
                  for x, y in points]  # fmt: skip
        parts.append(_text(WIDTH - RIGHT + 10, ends[number] + 4, name, colour=colour))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT}>"
    return "\n".join([head, *parts, "</svg>", ""])


def bar_chart(title: str, x_name: str, bars: Mapping[str, Mapping[str, float]]) -> str:
    """Draw each bar as a row of parts in the same order, with the sum at its end."""
    names = list(next(iter(bars.values())))
    longest = max(sum(parts.values()) for parts in bars.values())
    total_height = max(HEIGHT, TOP + BOTTOM + ROW * len(bars))
    height = (total_height - TOP - BOTTOM) / len(bars)
    drawn = [_text(LEFT, 25, title, size=15)]
    for number, name in enumerate(names):
        place, colour = LEFT + 105 * number, COLOURS[number % len(COLOURS)]
        drawn.append(f"<rect x='{place}' y='{TOP - 14}' width='10' height='10' fill='{colour}'/>")
        drawn.append(_text(place + 15, TOP - 5, name))
    for row, (bar, parts) in enumerate(bars.items()):
        x, y = float(LEFT), TOP + row * height
        drawn.append(_text(LEFT, y + 14, bar))
        for number, name in enumerate(names):
            width = parts[name] / longest * (WIDTH - LEFT - RIGHT)
            box = f"x='{x:.1f}' y='{y + 20:.1f}' width='{width:.1f}' height='{height - 34:.1f}'"
            drawn.append(f"<rect {box} fill='{COLOURS[number % len(COLOURS)]}'/>")
            x += width
        drawn.append(_text(x + 8, y + height / 2 + 7, f"{sum(parts.values()):.1f}"))
    drawn.append(_text(LEFT, total_height - 14, x_name))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {total_height}' {FONT}>"
    return "\n".join([head, *drawn, "</svg>", ""])


def _step(about: float) -> float:
    """Return a round number near `about`."""
    size = 1.0
    while size * 10 <= about:
        size *= 10
    while size > about:
        size /= 10
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= about)


def _apart(heights: list[float], least: float = 15.0) -> list[float]:
    """Move overlapping names apart."""
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    placed = list(heights)
    for above, below in itertools.pairwise(order):
        placed[below] = max(placed[below], placed[above] + least)
    return placed


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = ""
) -> str:
    fill = f" fill='{colour}'" if colour else ""
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}'"
    return f"<text {place}{fill}>{escape(text)}</text>"
