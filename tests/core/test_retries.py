import pytest

from ciel.core.retries import (
    BACK_OFF_FIRST_S,
    BACK_OFF_MAX_S,
    NOT_RETRIED,
    WORKER_LOSSES_MAX,
    Again,
    Blame,
    GiveUp,
    after_failure,
    after_worker_loss,
)
from ciel.core.tasks import RETRIES_MAX


def test_without_retries_the_first_failure_is_the_last() -> None:
    assert after_failure(Blame(), 0, "RUNTIME_ERROR", "exit status 3") == GiveUp(
        "RUNTIME_ERROR", "exit status 3"
    )


def test_a_failure_is_retried_as_often_as_was_asked_for() -> None:
    blame = Blame()
    verdicts = [after_failure(blame, 2, "RUNTIME_ERROR", "exit status 3") for _ in range(3)]
    assert verdicts == [
        Again(BACK_OFF_FIRST_S),
        Again(2 * BACK_OFF_FIRST_S),
        GiveUp("RUNTIME_ERROR", "exit status 3\n(attempt 3 of 3)"),
    ]


def test_what_programs_are_told_of_a_failure_stays_beside_its_text() -> None:
    blame = Blame(failures=1)
    verdict = after_failure(blame, 1, "RAISED", {"text": "no luck", "error": "packed"})
    told = {"text": "no luck\n(attempt 2 of 2)", "error": "packed"}
    assert verdict == GiveUp("RAISED", told)


def test_the_delay_doubles_up_to_a_limit() -> None:
    blame = Blame()
    delays = []
    for _ in range(RETRIES_MAX):
        verdict = after_failure(blame, RETRIES_MAX, "RUNTIME_ERROR", "")
        assert isinstance(verdict, Again)
        delays.append(verdict.delay_s)
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays == sorted(delays)
    assert delays[-1] == BACK_OFF_MAX_S


@pytest.mark.parametrize("reason", sorted(NOT_RETRIED))
def test_a_fault_that_another_attempt_cannot_mend_is_not_retried(reason: str) -> None:
    assert after_failure(Blame(), 5, reason, "so it is") == GiveUp(reason, "so it is")


def test_lost_workers_are_not_the_tasks_fault_until_the_third() -> None:
    blame = Blame()
    verdicts = [after_worker_loss(blame, f"w{number}") for number in range(1, 4)]
    assert verdicts[:2] == [Again(0.0), Again(0.0)]
    assert isinstance(verdicts[2], GiveUp)
    assert verdicts[2].reason == "WORKER_FAILED"
    assert verdicts[2].details == "3 workers were lost while they ran it, the last was w3"
    assert WORKER_LOSSES_MAX == 3


def test_lost_workers_use_up_no_retries() -> None:
    blame = Blame()
    after_worker_loss(blame, "w1")
    after_worker_loss(blame, "w2")
    assert after_failure(blame, 1, "RUNTIME_ERROR", "") == Again(BACK_OFF_FIRST_S)
