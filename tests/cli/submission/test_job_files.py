"""The conformance tests of job files: a text file beside each file contains the expected summary
or errors. `CIEL_JOB_FILES=write` rewrites these texts: read each change.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ciel.cli.commands import submit
from ciel.cli.jobfiles.key_lines import key_lines
from ciel.cli.jobfiles.planning import load
from ciel.cli.jobfiles.reading import ARRAYS, JOB_KEYS, TASK_KEYS
from ciel.core.tasks import LIMITS

FOLDER = Path(__file__).parent / "job_files"
SCHEMA = json.loads((Path(__file__).parents[3] / "docs/schemas/job-file.json").read_text())
FILES = sorted(FOLDER.glob("*/*.toml"))
OF_THE_SCHEMA = {"keys", "needs", "elements", "empty", "places"}
"""The bad files that a schema can reject. To reject the rest, a reader has to compare tasks."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_job_file_is_checked(
    path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    name = f"{path.parent.name}/{path.name}"
    status = submit.main("ciel submit", ["--file", name, "--check"])
    said = capfd.readouterr().out
    expected = path.with_suffix(".txt")
    if os.environ.get("CIEL_JOB_FILES") == "write":
        expected.write_text(said)
    assert said == expected.read_text()
    assert status == (0 if path.parent.name == "good" else 1)
    assert submit.main("ciel submit", ["--file", name, "--dry-run"]) == 0 if status == 0 else True


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_schema_accepts_good_files_and_rejects_what_it_can(path: Path) -> None:
    if path.stem == "syntax":
        return
    errors = list(Draft202012Validator(SCHEMA).iter_errors(tomllib.loads(path.read_text())))
    is_rejected = path.parent.name == "bad" and path.stem in OF_THE_SCHEMA
    assert bool(errors) is is_rejected, errors


def test_the_schema_names_each_key() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(JOB_KEYS)
    task = SCHEMA["properties"]["task"]["items"]["properties"]
    assert set(task) == set(TASK_KEYS)
    assert set(ARRAYS) <= set(task)
    limits = {limit.option.removeprefix("--") for limit in LIMITS if limit.option}
    assert set(task["needs"]["properties"]) <= limits


def test_a_wrong_file_is_refused_before_a_cluster_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(FOLDER)
    from ciel.cli.outcome import UsageError

    with pytest.raises(UsageError, match=r"bad/itself.toml:1: these tasks wait for each other"):
        submit.main("ciel submit", ["--file", "bad/itself.toml"])
    with pytest.raises(UsageError, match="No such file"):
        submit.main("ciel submit", ["--file", "none.toml"])
    with pytest.raises(UsageError, match=r"good/graph.toml:26: out needs a command that waits"):
        submit.main("ciel submit", ["--file", "good/graph.toml", "--detach"])


def test_tasks_stand_after_those_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    job, faults = load((FOLDER / "good/graph.toml").read_bytes())
    assert job is not None
    assert not faults
    assert [task.name for task in job.tasks] == ["count", "clean", "sum", "report"]


def test_a_long_chain_of_tasks_is_no_recursion() -> None:
    texts = ['[[task]]\nname = "t0"\ncommand = "true"\n']
    texts += [
        f'[[task]]\nname = "t{n}"\ncommand = "true"\nafter = "t{n - 1}"\n' for n in range(1, 3000)
    ]
    job, _ = load("".join(reversed(texts)).encode())
    assert job is not None
    assert [task.name for task in job.tasks] == [f"t{n}" for n in range(3000)]


@given(st.binary() | st.text().map(str.encode))
def test_no_content_breaks_the_reader(content: bytes) -> None:
    job, faults = load(content)
    assert (job is None) == bool(faults)
    assert all(1 <= fault.line <= content.count(b"\n") + 2 for fault in faults)


# --- lines ----------------------------------------------------------------------------------------


def test_each_key_has_its_line() -> None:
    text = """\
a = 1 # [b]
"c d".e = 'x' \n'f' = \"\"\"
g = 1
\\""\"\"\"
[[h]]
i = [ 1, # one
  { j = "}" }, [
  3]]
[h.k]
l = { m = 1, n.o = 2 }
[[h]]
i = '''
'p' = 2'''
"""
    assert tomllib.loads(text)
    assert key_lines(text) == {
        ("a",): 1,
        ("c d",): 2,
        ("c d", "e"): 2,
        ("f",): 3,
        ("h",): 6,
        ("h", 0): 6,
        ("h", 0, "i"): 7,
        ("h", 0, "i", 0): 7,
        ("h", 0, "i", 1): 8,
        ("h", 0, "i", 1, "j"): 8,
        ("h", 0, "i", 2): 8,
        ("h", 0, "i", 2, 0): 9,
        ("h", 0, "k"): 10,
        ("h", 0, "k", "l"): 11,
        ("h", 0, "k", "l", "m"): 11,
        ("h", 0, "k", "l", "n"): 11,
        ("h", 0, "k", "l", "n", "o"): 11,
        ("h", 1): 12,
        ("h", 1, "i"): 13,
    }
