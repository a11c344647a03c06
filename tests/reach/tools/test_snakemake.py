"""Runs the tests of the plug-in for Snakemake in its environment, and Snakemake in a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster

PLUGIN = Path(__file__).parents[3] / "contrib/snakemake-executor-plugin-ciel"
Tool = Callable[..., str]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_plugin_passes_its_tests_and_snakemakes(tool: Tool) -> None:
    options = ("-q", "-c", "/dev/null", "--rootdir", str(PLUGIN), "--show-capture=no")
    tool("python", "-m", "pytest", *options, str(PLUGIN / "tests"))


def test_snakemake_finds_the_cluster_of_its_user(
    tool: Tool, cluster: HandCluster, tmp_path: Path
) -> None:
    (tmp_path / "Snakefile").write_text(
        "rule all:\n    input: expand('{i}', i=range(30))\n"
        "rule one:\n    output: '{i}'\n    shell: 'echo {wildcards.i} >{output}'\n"
    )
    tool("snakemake", "--executor", "ciel", "--jobs", "10")
    assert (tmp_path / "29").read_text() == "29\n"
    listed = cluster.home.run("ciel", "job", "list", "--json").stdout
    job = max(json.loads(listed), key=lambda each: int(each["number"]))
    assert (job["name"], job["state"], job["counts"]) == ("snakemake", "completed", {"done": 30})
