"""Simulations whose master crashes or is replaced: seeds, and stories that failed once."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from ciel.testing.simulator.__main__ import main
from ciel.testing.simulator.disk import DamagedJournalError, FakeDisk
from ciel.testing.simulator.options import CRASHES, ELECTIONS
from ciel.testing.simulator.simulation import simulate

ROOT = Path(__file__).parents[2]
MUTANTS = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]
IS_LONG = os.environ.get("CIEL_LONG") == "1"


@pytest.mark.parametrize("start", range(1, 2001 if IS_LONG else 201, 50))
def test_a_master_that_crashes_loses_nothing(start: int) -> None:
    results = [simulate(seed, CRASHES) for seed in range(start, start + 50)]
    assert sum(result.restarts for result in results)


@pytest.mark.slow
def test_standbys_take_over_and_no_committed_record_is_lost() -> None:
    results = [simulate(seed, ELECTIONS) for seed in range(1, 501 if IS_LONG else 41)]
    assert sum(result.restarts for result in results) > len(results)


def test_no_finished_task_runs_again_if_only_the_master_fails() -> None:
    results = [simulate(seed, "redo") for seed in range(1, 41 if IS_LONG else 6)]
    assert sum(result.restarts for result in results)


@pytest.mark.parametrize(
    "scenario, seed",
    [
        pytest.param("redo", 1, id="read-by-one-master-and-lost-with-the-power"),
        pytest.param("redo", 8, id="job-without-wants-is-restored"),
        pytest.param("redo", 205, id="an-earlier-attempt-is-named-first"),
        pytest.param("redo", 380, id="a-cancelled-attempt-has-the-same-number"),
        pytest.param("restarts", 3, id="repeated-report-of-a-deleted-output"),
        pytest.param("restarts", 4, id="connection-ends-before-the-session-is-known"),
        pytest.param("restarts", 5, id="restored-after-it-delegated-its-outputs"),
        pytest.param("restarts", 202, id="starts-over-twice"),
        pytest.param("partitions", 8, id="adopted-while-it-was-dispatched-eagerly"),
        pytest.param("partitions", 12, id="listed-after-its-repeated-report"),
        pytest.param("ruins", 131, id="two-attempts-at-one-task-are-kept"),
        pytest.param("standbys", 3, id="appended-before-the-copy-begins-and-written-after-it"),
        pytest.param("standbys", 14, id="voters-that-do-not-answer"),
        pytest.param("standbys", 23, id="session-that-was-only-confirmed-is-resumed"),
        pytest.param("standbys", 42, id="client-returns-to-a-master-that-was-replaced"),
        pytest.param("standbys", 124, id="standby-elected-by-a-succession-that-its-master-lost"),
        pytest.param("standbys", 499, id="cancelled-start-of-a-child-beside-a-later-attempt"),
        pytest.param(CRASHES, 56, id="process-given-to-a-child-is-restored"),
        pytest.param(CRASHES, 127, id="attempt-that-counted-is-kept"),
        pytest.param(CRASHES, 1131, id="process-waits-on-a-worker-that-was-dead"),
        pytest.param(CRASHES, 1140, id="retried-before-its-failure-is-repeated"),
        pytest.param(CRASHES, 2018, id="process-released-before-the-crash"),
        pytest.param(CRASHES, 2332, id="started-child-whose-end-is-not-repeated"),
        pytest.param(CRASHES, 2407, id="creates-another-child-when-it-runs-again"),
        pytest.param(CRASHES, 6008, id="base-of-a-job-that-is-being-cancelled"),
        pytest.param(CRASHES, 7885, id="attempt-that-reads-is-kept-and-its-producer-has-delegated"),
        pytest.param(CRASHES, 26480, id="late-output-and-the-next-attempt-there-finds-no-inputs"),
        pytest.param(CRASHES, 37316, id="completed-after-a-retry-whose-task-is-forgotten"),
        pytest.param(CRASHES, 37816, id="adopted-reader-of-an-attempt-that-is-stopped"),
        pytest.param(CRASHES, 59387, id="number-of-an-attempt-that-is-not-adopted"),
        pytest.param(ELECTIONS, 244, id="master-of-an-earlier-epoch-starts-late"),
        pytest.param(ELECTIONS, 4333, id="master-without-standbys-returns-as-a-standby"),
        pytest.param(ELECTIONS, 2248, id="cancelled-after-its-end-and-before-the-crash"),
        pytest.param(ELECTIONS, 739, id="one-base-stands-for-several-journals"),
        pytest.param(ELECTIONS, 2886, id="master-is-restarted-with-the-copy-of-a-standby"),
        pytest.param(ELECTIONS, 4257, id="client-asks-a-master-that-has-not-taken-office"),
        pytest.param(ELECTIONS, 5607, id="client-hears-a-separated-master-longer-than-its-grace"),
        pytest.param(ELECTIONS, 6918, id="master-of-an-earlier-epoch-serves-later"),
        pytest.param(CRASHES, 11398, id="results-are-recomputed-when-the-job-is-restored"),
        pytest.param(CRASHES, 11688, id="records-are-durable-before-the-next-tick-ends"),
        pytest.param(CRASHES, 11767, id="client-leaves-while-its-session-waits-for-the-disk"),
        pytest.param(CRASHES, 12567, id="ends-while-the-master-waits-for-a-worker"),
        pytest.param(CRASHES, 12672, id="upload-of-a-worker-that-has-not-returned"),
        pytest.param(CRASHES, 14736, id="error-from-before-a-retry-is-replaced-by-a-result"),
    ],
)
def test_what_failed_once(scenario: str, seed: int) -> None:
    simulate(seed, scenario)


# --- the smallest story ---------------------------------------------------------------------------


def test_faults_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ",".join(map(str, range(100)))
    assert main(["--seeds", "2", "--scenario", "restarts", "--without", numbers]) == 0
    assert "0 restarts of the master" in capsys.readouterr().out


# --- the disk -------------------------------------------------------------------------------------


def test_a_file_that_ends_early_before_another_one_is_damaged() -> None:
    disk = FakeDisk()
    first = disk.begin_file()
    first.content += b"CJg1"
    assert list(disk.groups()) == []  # its end is cut off
    first.content += b"CJg1"
    disk.begin_file()
    with pytest.raises(DamagedJournalError):
        list(disk.groups())


# --- mutants --------------------------------------------------------------------------------------


def test_there_are_forty_mutants_and_each_text_occurs_once() -> None:
    wrong = [
        mutant["effect"]
        for mutant in MUTANTS
        if (ROOT / mutant["file"]).read_text().count(mutant["text"]) != 1
    ]
    assert wrong == []
    assert len(MUTANTS) >= 40
