"""Tests the table of the chaos driver and its page, and compares the page with the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.chaos import table
from benchmarks.chaos.__main__ import in_order, main
from benchmarks.chaos.rows import ROWS, Figure, Findings, Result, Row, Setting, row
from benchmarks.chaos.running import from_json, measure_here, read_findings, to_json

CATALOGUE = {
    *(f"W{n}" for n in range(1, 13)), *(f"O{n}" for n in range(1, 12)),
    *(f"M{n}" for n in range(1, 15)), *(f"H{n}" for n in range(1, 9)),
}  # fmt: skip


def nothing(setting: Setting) -> Findings:
    yield Figure("scale", setting.scale)


ROW = Row("W1", "a worker is killed", "it is restarted", "≤ 1.2 x", nothing)
TWO = {"W1": ROW, "M1": Row("M1", "a master | is killed", "it is back", "0 lost", nothing)}


def result(name: str, *figures: Figure, scale: float = 1, error: str = "") -> Result:
    return Result(name, scale, 1.0, [*figures], [], error)


GOOD = Figure("ratio", 1.1, "x", 1.2, digits=2)
BAD = Figure("lost", 3, "", 0)


def test_every_row_of_the_catalogue_is_there() -> None:
    assert set(in_order()) == set(ROWS) == CATALOGUE


def test_a_name_stands_for_one_row() -> None:
    with pytest.raises(ValueError, match="two rows are called W1"):
        row("W1", "", "", "")(nothing)


@pytest.mark.parametrize(
    "figure, is_met",
    [
        (Figure("a", 2, "", 2), True),
        (Figure("a", 3, "", 2), False),
        (Figure("a", 2, "", 2, at_most=False), True),
        (Figure("a", 1, "", 2, at_most=False), False),
        (Figure("a", 5), True),
    ],
)
def test_a_figure_is_compared_with_its_target(figure: Figure, is_met: bool) -> None:
    assert figure.is_met == is_met


def test_figures_are_printed_with_units_and_targets() -> None:
    assert GOOD.measured() == "ratio: 1.10 x"
    assert GOOD.goal() == "ratio ≤ 1.2 x"
    assert Figure("rate", 1e6, "/s", 3e5, at_most=False).goal() == "rate ≥ 300,000 /s"
    assert Figure("kills", 12).goal() == ""


def test_a_row_is_met_only_with_all_figures_and_without_an_error() -> None:
    assert result("W1", GOOD).verdict == "met"
    assert result("W1", GOOD, BAD).verdict == "missed"
    assert result("W1", GOOD, error="it hangs").verdict == "missed"
    assert Result("W1", 1, error="no root", cannot_run=True).verdict == "not measured"


def test_missed_rows_come_first() -> None:
    lines = table.table([result("W1", GOOD), result("M1", BAD)], TWO).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| M1", "| W1"]
    assert "a master \\| is killed" in lines[2]
    assert lines[2].endswith("| lost: 3 | lost ≤ 0 | missed |")


def test_a_smaller_run_says_so_and_is_not_recorded() -> None:
    small = result("W1", GOOD, scale=0.1)
    assert table.table([small], TWO).startswith("Smaller than the rows say: scale 0.1.")
    assert "Smaller" not in table.table([result("W1", GOOD)], TWO)
    with pytest.raises(ValueError, match=r"W1 ran at scale 0\.1"):
        table.record([small], TWO)


def test_the_page_lists_rows_that_were_not_measured() -> None:
    page = table.write_page(f"Words.\n\n{table.START}old", {"M1": result("M1", BAD)}, TWO)
    assert page.startswith("Words.\n\n")
    assert "old" not in page
    measured, _, rest = page.partition("## Not measured")
    assert "Rows measured: 1; rows that miss a target: 1." in measured
    assert "`python -m benchmarks.chaos M1`" in measured
    assert "| W1 | a worker is killed | it is restarted | ≤ 1.2 x | no run yet |" in rest
    assert "| M1 " not in rest
    assert table.write_page(page, {"M1": result("M1", BAD)}, TWO) == page


def test_a_row_that_could_not_run_is_listed_with_the_reason() -> None:
    lacking = Result("W1", 1, error="strace not found", cannot_run=True)
    assert "| strace not found |" in table.page_part({"W1": lacking}, TWO)


def test_a_page_without_its_mark_is_an_error() -> None:
    with pytest.raises(ValueError, match="the page has no line"):
        table.write_page("Words.", {}, TWO)


def test_the_page_agrees_with_the_record() -> None:
    page = table.PAGE.read_text()
    rows = {name: ROWS[name] for name in in_order()}
    assert table.write_page(page, table.recorded(), rows) == page


def test_results_are_recorded_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "RECORDED", tmp_path / "results.json")
    monkeypatch.setattr(table, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(table.START)
    table.record([result("M1", BAD)], TWO)
    table.record([result("W1", GOOD)], TWO)
    table.record([result("M1", GOOD)], TWO)
    assert table.recorded() == {"W1": result("W1", GOOD), "M1": result("M1", GOOD)}
    assert "Rows measured: 2; rows that miss a target: 0." in (tmp_path / "page.md").read_text()
    assert [*json.loads((tmp_path / "results.json").read_text())] == ["W1", "M1"]


# --- findings of a row ----------------------------------------------------------------------------


def test_a_result_survives_its_json_form() -> None:
    whole = Result("W1", 0.5, 2.5, [GOOD, BAD], ["a note"], "an error")
    assert from_json(json.loads(json.dumps(to_json(whole)))) == whole


def test_findings_of_a_row_are_read_back(tmp_path: Path) -> None:
    measure_here(ROW, 0.25, tmp_path / "findings")
    found = read_findings(ROW, 0.25, tmp_path / "findings")
    assert found == Result("W1", 0.25, figures=[Figure("scale", 0.25)])


def test_figures_before_an_exception_count_and_the_row_is_missed(tmp_path: Path) -> None:
    def fails(setting: Setting) -> Findings:
        yield GOOD
        raise RuntimeError("it broke")

    failing = Row("W1", "", "", "", fails)
    measure_here(failing, 1, tmp_path / "findings")
    found = read_findings(failing, 1, tmp_path / "findings")
    assert (found.figures, found.error, found.verdict) == (
        [GOOD],
        "RuntimeError: it broke",
        "missed",
    )


def test_a_row_whose_process_was_killed_is_missed(tmp_path: Path) -> None:
    (tmp_path / "findings").write_text(json.dumps({"figure": GOOD}) + "\n")
    assert read_findings(ROW, 1, tmp_path / "findings").error == "it ended early"
    assert read_findings(ROW, 1, tmp_path / "absent").verdict == "missed"


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        (["W99"], "no such row: W99"),
        (["--scale", "2"], "--scale must be more than 0, and at most 1"),
        (["--scale", "0.5", "--record"], "--record needs the full size"),
    ],
)
def test_wrong_options_are_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err


def test_rows_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == in_order()
