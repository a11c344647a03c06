"""The executors of a host, as they are installed and set up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ciel import plugins
from ciel.access.errors import SettingsError
from ciel.cli.daemons.executors import GROUP, REASON_MAX_LENGTH, load_executors
from ciel.core.tasks import Mentions
from ciel.execution.executor import Executor, Finish, Task
from ciel.master.resources.submissions import PLAIN_PROGRAMS


class Ours(Executor):
    """An executor of another project."""

    name = "ours"

    def __init__(self, *, lacks: str = "") -> None:
        self._lacks = lacks

    def missing(self, environ: Any) -> str:
        if self._lacks == "everything":
            raise LookupError("it looked in vain")
        return self._lacks

    def begin(self, task: Task) -> Finish:
        return Finish()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home on a host with the executor `ours`, and another that cannot be imported."""
    load = plugins.load

    def loaded(group: str, name: str) -> Any:
        if name == "broken":
            raise plugins.PluginError(group, name, "cannot be loaded: no module x")
        return Ours if name == "ours" else load(group, name)

    monkeypatch.setattr(plugins, "load", loaded)
    monkeypatch.setattr(plugins, "names", lambda group: ["broken", "language", "ours"])
    return tmp_path


def found(home: Path, text: str = "") -> tuple[list[str], dict[str, str]]:
    path = home / "config.toml"
    path.write_text(text)
    executors = load_executors({"CIEL_CONFIG": str(path), "PATH": "/bin:/usr/bin"})
    lacking = {name: why.replace(str(path), "FILE") for name, why in executors.lacking.items()}
    return sorted(executors.offered), lacking


BROKEN = {"broken": "executor 'broken': cannot be loaded: no module x"}


def test_one_that_cannot_be_loaded_is_left_out(home: Path) -> None:
    assert GROUP in plugins.GROUPS
    assert found(home) == (["ours"], BROKEN)


@pytest.mark.parametrize(
    "text, why",
    [
        ('lacks = "a hat"', "a hat"),
        (f'lacks = "{"x" * 5000}"', "x" * REASON_MAX_LENGTH),
        ('lacks = "everything"', "it cannot be set up (FILE line 1): it looked in vain"),
        ("lack = 1", "it cannot be set up (FILE line 1): 'lack' is unknown; the keys are: lacks"),
    ],
)
def test_one_that_lacks_something_says_what(home: Path, text: str, why: str) -> None:
    assert found(home, f"[executors.ours]\n{text}") == ([], BROKEN | {"ours": why})


def test_one_that_lacks_something_is_known_all_the_same(home: Path) -> None:
    """Its tasks may be created here and run elsewhere."""
    (home / "config.toml").write_text('[executors.ours]\nlacks = "a hat"\n[executors.none]\n')
    executors = load_executors({"CIEL_CONFIG": str(home / "config.toml")})
    assert (sorted(executors.known), sorted(executors.offered)) == (["ours"], [])


def test_a_table_of_a_new_name_makes_an_executor(home: Path) -> None:
    offered, lacking = found(home, '[executors.shell]\ncommand = ["sh"]\n[executors.none]\n')
    assert offered == ["ours", "shell"]
    assert lacking["none"].startswith("it cannot be set up (FILE line 3): ")
    assert "no executor of this name is installed" in lacking["none"]
    assert "add 'command', a list such as" in lacking["none"]


@pytest.mark.parametrize("text", ["executors = 1", "[executors]\nocaml = 1"])
def test_what_is_no_table_is_refused(home: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"\[executors\.NAME\]"):
        found(home, text)


def test_jobs_by_http_take_for_plain_programs_what_runs_them() -> None:
    known = load_executors(os.environ).known
    plain = {name for name, found in known.items() if found.mentions is Mentions.NOTHING}
    assert plain == PLAIN_PROGRAMS
