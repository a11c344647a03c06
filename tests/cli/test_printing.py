import io
import time
from datetime import datetime

import pytest

from ciel.cli.output.progress import Counts, Progress, bar_text, progress_text
from ciel.cli.output.tables import duration, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_has_columns() -> None:
    assert table(("JOB", "NAME"), [(1, "a"), (10, "long name")]) == (
        "JOB  NAME\n  1  a\n 10  long name"
    )
    assert table(("A", "B"), []) == "A  B"


def test_a_table_that_is_too_wide_has_its_widest_texts_cut() -> None:
    rows = [(1, "a" * 30, "done", "b" * 20), (22, "c", "failed", "d")]
    headings = ("JOB", "NAME", "STATE", "REASON")
    assert table(headings, rows, 40) == (
        "JOB  NAME          STATE   REASON\n"
        "  1  aaaaaaaaaaa…  done    bbbbbbbbbbbb…\n"
        " 22  c             failed  d"
    )
    assert table(headings, rows, 200) == table(headings, rows)


def test_no_line_of_a_table_is_wider_than_the_screen() -> None:
    rows = [("x" * 30, 123456789)]
    assert table(("NAME", "NUMBER"), rows, 15) == "NAME     NUMBER\nxxx…  123456789"
    assert table(("NAME", "NUMBER"), rows, 10) == "NAME     …\nxxx…  123…"


def test_wide_letters_count_for_two_columns() -> None:
    rows = [("\u65e5\u672c\u8a9e", "a")]
    assert table(("N", "B"), rows) == "N       B\n\u65e5\u672c\u8a9e  a"
    assert table(("N", "B"), rows, 7) == "N     B\n\u65e5\u2026   a"


def test_what_a_cell_holds_stays_in_its_line_and_steers_no_terminal() -> None:
    assert table(("NAME",), [("a\x1b[31m\nb\x9b\u2028",)]) == ("NAME\na\\x1b[31m\\nb\\x9b\\u2028")


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1, "0.0s"), (0.04, "0.0s"), (9.94, "9.9s"), (10, "10s"), (59.4, "59s"), (59.6, "1m 0s"),
        (185, "3m 5s"), (3600, "1h 0m"), (7260, "2h 1m"), (4 * 86400 + 3 * 3600, "4d 3h"),
    ],
)  # fmt: skip
def test_time_spans_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_live_line_tells_failures_only_if_there_are_any() -> None:
    assert progress_text("sort", Counts(3, 2, 0, 10), 2.0) == (
        "sort: 3 done, 2 running, 10 in all, 1.5/s, 4.7s left"
    )
    assert progress_text("sort", Counts(0, 0, 1, 4), 2.0) == (
        "sort: 0 done, 0 running, 1 failed, 4 in all, 0.5/s, 6.0s left"
    )


def test_a_total_that_is_not_known_yet_is_not_claimed() -> None:
    assert progress_text("sort", Counts(3, 2, 0, 10, growing=True), 2.0) == (
        "sort: 3 done, 2 running, 10 so far, 1.5/s"
    )


def test_on_a_terminal_one_line_is_redrawn_and_erased_at_the_end() -> None:
    terminal = Terminal()
    with Progress("x", lambda: Counts(1, 1, 0, 2), stream=terminal) as progress:
        deadline_s = time.monotonic() + 20
        while terminal.getvalue().count("1 done") < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        progress.aside(lambda: print("result", file=terminal))
    text = terminal.getvalue()
    assert "\r\x1b[Kresult\n" in text
    assert "\r\x1b[Kresult\n" in text
    assert text.endswith("ciel: x: 1 done in 0.4s\n") or "1 done" in text.splitlines()[-1]
    assert text.count("\n") == 2


def test_elsewhere_a_brief_job_shows_nothing() -> None:
    stream = io.StringIO()
    with Progress("x", lambda: Counts(0, 0, 0, 1), stream=stream) as progress:
        progress.aside(lambda: None)
    assert stream.getvalue() == ""


def test_quiet_shows_nothing_on_a_terminal_either() -> None:
    terminal = Terminal()
    with Progress("x", lambda: Counts(0, 0, 0, 1), quiet=True, stream=terminal):
        time.sleep(0.3)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    "counts, per_s, text",
    [
        (Counts(5, 1, 5, 20), 2.0, "[##########..........] 50% ends 12:00:05 "),
        (Counts(0, 1, 0, 20), None, "[....................] 0% "),
        (Counts(20, 0, 0, 20), 2.0, "[####################] 100% "),
        (Counts(1, 0, 0, 20), 1e-4, "[#...................] 5% ends 2026-03-03 16:46 "),
        (Counts(1, 0, 0, 20), 1e-300, "[#...................] 5% "),
        (Counts(5, 1, 5, 20, growing=True), 2.0, ""),
    ],
)
def test_a_bar_says_how_much_is_done_and_when_it_ends(
    counts: Counts, per_s: float | None, text: str
) -> None:
    assert bar_text(counts, per_s, datetime(2026, 3, 1, 12)) == text


def test_only_a_terminal_shows_a_bar() -> None:
    for stream, has_bar in ((Terminal(), True), (io.StringIO(), False)):
        progress = Progress("j", lambda: Counts(1, 0, 0, 2), has_bar=True, stream=stream)
        progress._draw(Counts(1, 0, 0, 2))
        assert ("50%" in stream.getvalue()) is has_bar
        assert "1 done" in stream.getvalue()
