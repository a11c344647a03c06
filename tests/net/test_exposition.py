"""Tests metrics in the text format of Prometheus."""

import re

from ciel.net.exposition import Family, counter, gauge, process_families, render

LINE = re.compile(
    r"# (HELP|TYPE) [a-z_]+ .+|"
    r'[a-z_]+(\{[a-z_]+="(\\[\\n"]|[^\\\n"])*"(,[a-z_]+="(\\[\\n"]|[^\\\n"])*")*\})? \S+',
)


def test_a_metric_has_its_help_its_type_and_a_line_for_each_label() -> None:
    family = Family("ciel_jobs", "gauge", "Jobs.", [({"state": "active"}, 2), ({}, 0.5)])
    assert render([family, counter("n_total", "All.", 10**15)]).decode() == (
        "# HELP ciel_jobs Jobs.\n# TYPE ciel_jobs gauge\n"
        'ciel_jobs{state="active"} 2\nciel_jobs 0.5\n'
        "# HELP n_total All.\n# TYPE n_total counter\nn_total 1000000000000000\n"
    )


def test_characters_that_would_break_a_line_are_escaped() -> None:
    family = Family("a", "gauge", "one\ntwo \\", [({"name": 'x"\n\\', "other": "é"}, 1)])
    lines = render([family]).decode().splitlines()
    assert lines[0] == "# HELP a one\\ntwo \\\\"
    assert lines[2] == 'a{name="x\\"\\n\\\\",other="é"} 1'
    assert all(LINE.fullmatch(line) for line in lines)


def test_process_metrics_are_exposed() -> None:
    text = render([*process_families(), gauge("x", "X.", float("inf"))]).decode()
    assert all(LINE.fullmatch(line) for line in text.splitlines())
    figures = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    assert float(figures["process_resident_memory_bytes"]) > 10_000_000
    assert float(figures["process_open_fds"]) >= 3
    assert float(figures["process_cpu_seconds_total"]) > 0
    assert figures["x"] == "+Inf"
