"""Runs the workflows of Snakemake's own suite for executors, and further ones, in a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake_executor_plugin_ciel import ExecutorSettings

from ciel.testing.homes import Home, wait_for


class TestWorkflows(TestWorkflowsLocalStorageBase):
    """Snakemake's own suite for executors."""

    __test__ = True
    settings = ExecutorSettings()

    def get_executor(self) -> str:
        return "ciel"

    def get_executor_settings(self) -> ExecutorSettings:
        return self.settings


class TestWholeJobs(TestWorkflows):
    """The same suite, with a Snakemake for every job."""

    settings = ExecutorSettings(whole_jobs=True)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a directory for a workflow; afterwards nothing of a cluster may be left."""
    home = Home(tmp_path)
    for name, value in home.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    wait_for(lambda: not home.processes(), "the end of all processes")


def snakemake(*options: str, status: int = 0) -> str:
    """Run Snakemake in the current directory; return its output."""
    command = [sys.executable, "-m", "snakemake", "--executor", "ciel", "--jobs", "4", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == status, done.stdout
    return done.stdout


def test_a_shell_rule_runs_as_its_command(workdir: Path) -> None:
    (workdir / "Snakefile").write_text(
        "rule one:\n"
        "    output: 'a/parent', 'a/threads'\n"
        "    threads: 2\n"
        "    resources: mem_mb=100, runtime=5, tmpdir='t'\n"
        "    shell: 'ps -o args= $PPID >{output[0]}; echo $OMP_NUM_THREADS $TMPDIR >{output[1]}'\n"
    )
    snakemake()
    assert "ciel-launcher" in (workdir / "a/parent").read_text()
    assert (workdir / "a/threads").read_text() == "2 t\n"


def test_a_rule_in_python_runs_in_a_snakemake_on_the_worker(workdir: Path) -> None:
    (workdir / "Snakefile").write_text(
        "rule one:\n    output: 'a'\n    run:\n        open(output[0], 'w').write('made')\n"
    )
    snakemake()
    assert (workdir / "a").read_text() == "made"


def test_a_failed_job_is_explained_and_its_output_is_kept(workdir: Path) -> None:
    (workdir / "Snakefile").write_text(
        "rule one:\n    output: 'a'\n    shell: 'echo half >{output}; echo why >&2; exit 7'\n"
    )
    text = snakemake(status=1)
    assert "The task failed (" in text
    assert "7" in text
    assert (workdir / ".snakemake/ciel_logs/one/0-1.log").read_text() == "why\n"
    assert not (workdir / "a").exists()  # Snakemake removes what a failed job has written


def test_a_job_that_fails_is_repeated(workdir: Path) -> None:
    (workdir / "Snakefile").write_text(
        "rule one:\n"
        "    output: 'a'\n"
        "    retries: 2\n"
        "    shell: 'echo >>tries; test $(wc -l <tries) = 3; touch {output}'\n"
    )
    snakemake()
    assert (workdir / "tries").read_text() == "\n" * 3


def test_an_interrupted_workflow_leaves_no_program(workdir: Path) -> None:
    (workdir / "Snakefile").write_text(
        "rule one:\n    output: 'a'\n    shell: 'echo $$ >pid; exec sleep 1000'\n"
    )
    command = [sys.executable, "-m", "snakemake", "--executor", "ciel", "--jobs", "1"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid = workdir / "pid"
    wait_for(lambda: pid.exists() and pid.read_text().endswith("\n"), "the job", 60.0)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_workflow_without_a_shared_file_system_is_refused(workdir: Path) -> None:
    (workdir / "Snakefile").write_text("rule one:\n    output: 'a'\n    shell: 'touch a'\n")
    text = snakemake("--shared-fs-usage", "input-output", "persistence", status=1)
    assert "add to --shared-fs-usage: sources storage-local-copies" in text
