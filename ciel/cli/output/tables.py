"""Lays out tables for a terminal, and writes time spans and sizes for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from ciel.execution.report import visible

_GAP = "  "  # between columns
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def screen_width() -> int | None:
    """Return the width of the terminal; None if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None
) -> str:
    """Lay out rows under headings; columns of numbers are right-aligned.

    If the table is wider than `width`, the widest columns of text are cut, and then its lines.
    """
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    columns = range(len(headings))
    right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in columns]
    widths = [max([len(headings[i]), *(columns_of(row[i]) for row in cells)]) for i in columns]
    if width is not None:
        _narrow(widths, [i for i in columns if not right[i]], headings, width)

    def line(row: Sequence[str]) -> str:
        padded = [
            text.rjust(own) if to_right else _filled(cut(text, own), own)
            for text, own, to_right in zip(row, widths, right, strict=True)
        ]
        text = _GAP.join(padded).rstrip()
        return text if width is None else cut(text, width)

    return "\n".join([line(headings), *map(line, cells)])


def _narrow(widths: list[int], texts: Sequence[int], headings: Sequence[str], width: int) -> None:
    """Narrow the widest columns of text until the table fits, but not below their headings."""
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - width):
        wide = [i for i in texts if widths[i] > len(headings[i])]
        if not wide:
            return
        widths[max(wide, key=lambda i: widths[i])] -= 1


def cut(text: str, width: int) -> str:
    """Return text cut to `width` columns; an ellipsis marks the cut."""
    if text.isascii():
        return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
    if columns_of(text) <= width:
        return text
    while text and columns_of(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # few texts need it

    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def _filled(text: str, width: int) -> str:
    """Pad text with blanks to `width` columns."""
    return text + " " * (width - columns_of(text))


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def duration(seconds: float) -> str:
    """Return a time span in at most two units: `0.3s`, `42s`, `3m 5s`, `2h 1m`, `4d 3h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    for unit_s, unit, smaller_s, smaller in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")
    ):  # fmt: skip
        if whole >= unit_s:
            return f"{whole // unit_s}{unit} {whole % unit_s // smaller_s}{smaller}"
    return f"{whole}s"


def count_text(count: int, noun: str) -> str:
    """Return a number with a noun: `1 server`, `2 servers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size_text(size_bytes: int) -> str:
    """Return a size with at most one decimal: `0`, `4KiB`, `1.5GiB`."""
    if not size_bytes:
        return "0"
    size, place = float(size_bytes), 0
    while size >= 1023.95 and place < len(_UNITS) - 1:
        size, place = size / 1024, place + 1
    return f"{size:.1f}".removesuffix(".0") + _UNITS[place]
