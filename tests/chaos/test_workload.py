"""Tests the job of the chaos driver, and how it counts runs by the notes of programs."""

from __future__ import annotations

from benchmarks.chaos.workload import LEAVES, Runs, Sums


def test_the_result_at_full_size_is_that_of_the_catalogue() -> None:
    assert Sums().expected() == b"41654167500\n"
    assert len(Sums().names()) == LEAVES + LEAVES // 10 + 1


def test_names_of_tasks_are_unique() -> None:
    names = Sums(25).names()
    assert len(names) == len(set(names)) == 25 + 3 + 1


def notes(*lines: str) -> str:
    return "".join(f"{number} {line}\n" for number, line in enumerate(lines))


def test_each_program_that_ran_once_gives_no_runs_again() -> None:
    runs = Runs.of([notes("starts leaf0", "ends leaf0", "starts sum0", "ends sum0")])
    assert runs == Runs(2, 0, 0, 0, frozenset(("leaf0", "sum0")))


def test_a_program_that_was_cut_and_ran_again_had_not_finished() -> None:
    runs = Runs.of([notes("starts leaf0", "starts leaf0", "ends leaf0")])
    assert (runs.again, runs.finished_again, runs.cut) == (1, 0, 1)


def test_a_finished_program_that_ran_again_counts() -> None:
    runs = Runs.of([notes("starts leaf0", "ends leaf0", "starts leaf0", "ends leaf0")])
    assert (runs.started, runs.again, runs.finished_again, runs.cut) == (2, 1, 1, 0)


def test_notes_of_several_hosts_are_ordered_by_time() -> None:
    first = "10 starts leaf0\n20 ends leaf0\n"
    second = "5 starts leaf1\n15 starts leaf0\n30 ends leaf0\n40 ends leaf1\n"
    runs = Runs.of([first, second])
    assert (runs.started, runs.again) == (3, 1)
    assert runs.finished_again == 0  # the second run began before the first had ended
    assert Runs.of([second.replace("15", "25"), first]).finished_again == 1


def test_no_notes_give_no_runs() -> None:
    assert Runs.of([]) == Runs(0, 0, 0, 0, frozenset())
