"""`ciel config show`: the settings, and where each is set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ciel.access.errors import SettingsError
from ciel.cli.commands.config import main


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CIEL_MASTER", "CIEL_ACCESS", "CIEL_STORE", "CIEL_CONFIG", "CIEL_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / ".config/ciel/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def shown(capfdbinary: pytest.CaptureFixture[bytes], *words: str) -> Any:
    assert main("config", ["show", "--json", *words]) == 0
    return json.loads(capfdbinary.readouterr().out)


def test_nothing_is_set(home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    told = shown(capfdbinary, "--origin")
    assert told["master"] == {"value": None, "origin": "not set"}
    assert told["store"] == {"value": "disk", "origin": "default"}
    assert told["config"]["value"] == f"{home}/.config/ciel/config.toml"
    assert told["config"]["origin"] == "default; the file does not exist"
    assert told["cluster"] == {"value": None, "origin": "no cluster is configured or running"}


def test_each_value_is_told_with_who_set_it(
    home: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '\nmaster = "of-file:1"\naccess = "a.json"\n[executors.ocaml]\ncompiler = "oc"\n'
    path = write(home, text)
    monkeypatch.setenv("CIEL_ACCESS", "/of/environment")
    monkeypatch.setenv("CIEL_STORE", "shm:capacity=1GiB")
    told = shown(capfdbinary, "--origin", "--master", "of-flag:1")
    assert told["master"] == {"value": "of-flag:1", "origin": "--master"}
    assert told["access"] == {"value": "/of/environment", "origin": "CIEL_ACCESS"}
    assert told["store"] == {"value": "shm:capacity=1GiB", "origin": "CIEL_STORE"}
    assert told["executors.ocaml"]["value"] == {"compiler": "oc"}
    assert str(path) in told["executors.ocaml"]["origin"]
    monkeypatch.delenv("CIEL_ACCESS")
    told = shown(capfdbinary, "--origin")
    assert told["master"] == {"value": "of-file:1", "origin": f"{path} line 2"}
    assert told["access"] == {"value": str(path.parent / "a.json"), "origin": f"{path} line 3"}
    assert "no such file" in told["cluster"]["origin"]


def test_without_origin_there_are_values_alone(
    home: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert shown(capfdbinary)["store"] == "disk"
    assert main("config", ["show"]) == 0
    heading, *rows = capfdbinary.readouterr().out.decode().splitlines()
    assert heading.split() == ["SETTING", "VALUE"]
    assert ["log_level", "info"] in [row.split() for row in rows]


def test_a_file_at_fault_is_named_with_its_line(home: Path) -> None:
    write(home, "\n\nmister = 'x'\n")
    with pytest.raises(SettingsError, match="line 3: unknown setting 'mister'"):
        main("config", ["show"])


@pytest.mark.parametrize(
    "text, line",
    [
        ('\n[executors."x y"]\ncommand = []', 2),
        ("\n [ executors . 'x y' ] # so\ncommand = []", 2),
        ('[executors]\na.command = []\n"x y".command = []', 3),
        ("[executors.a]\n'x y' = 1\n[executors]\n'x y' = {command = []}", 4),
        ('executors."x y".command = []', 1),
        ('\nexecutors = {"x y" = {}}', 2),
        ("[executors.a]\n[executors.'x y'.env]\n", 2),
    ],
)
def test_the_line_of_a_table_is_told_however_its_name_is_written(
    home: Path, capfdbinary: pytest.CaptureFixture[bytes], text: str, line: int
) -> None:
    path = write(home, text)
    assert shown(capfdbinary, "--origin")["executors.x y"]["origin"] == f"{path} line {line}"
