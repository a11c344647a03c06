"""Runs programs in the environment of `make tools`, which has the tools that ciel works in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home, wait_for

ROOT = Path(__file__).parents[3]
BIN = ROOT / ".venv-tools" / "bin"
TOOL_S = 300.0
Tool = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandCluster]:
    """Provide a cluster for one test file; tools find it as commands do."""
    if not (BIN / "python").exists():
        pytest.skip("the tools are missing; `make tools` installs them")
    home = Home(tmp_path_factory.mktemp("tools"))
    home.environ["CIEL_TES_IMAGES"] = "ignore"
    cluster = HandCluster.start(home, 1, "--slots", "3")
    yield cluster
    cluster.stop()
    wait_for(lambda: not home.processes(), "the end of all processes")


@pytest.fixture
def tool(cluster: HandCluster, tmp_path: Path) -> Tool:
    """Return a function that runs a program of the tools in an empty directory."""

    def run(program: str, *arguments: str, status: int = 0) -> str:
        environ = {**cluster.home.environ, "PATH": f"{BIN}:{cluster.home.environ['PATH']}"}
        done = subprocess.run(
            [str(BIN / program), *arguments], cwd=tmp_path, env=environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TOOL_S,
        )  # fmt: skip
        assert done.returncode == status, done.stdout
        return done.stdout

    return run
