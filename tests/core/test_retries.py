import pytest

from ciel.core.retries import (
    BACK_OFF_FIRST_BY_KIND_S,
    BACK_OFF_FIRST_S,
    BACK_OFF_MAX_S,
    WORKER_LOSSES_MAX,
    GiveUp,
    Retry,
    RetryState,
    after_failure,
    after_worker_loss,
)
from ciel.core.tasks import NOT_RETRIED, RETRIES_MAX, Needs


def test_without_retries_the_first_failure_is_the_last() -> None:
    assert after_failure(
        RetryState(), Needs(retries=0), "RUNTIME_ERROR", "exit status 3"
    ) == GiveUp("RUNTIME_ERROR", "exit status 3")


def test_a_failure_is_retried_as_often_as_requested() -> None:
    blame = RetryState()
    verdicts = [
        after_failure(blame, Needs(retries=2), "RUNTIME_ERROR", "exit status 3") for _ in range(3)
    ]
    assert verdicts == [
        Retry(BACK_OFF_FIRST_S),
        Retry(2 * BACK_OFF_FIRST_S),
        GiveUp("RUNTIME_ERROR", "exit status 3\n(attempt 3 of 3)"),
    ]


def test_the_details_of_a_failure_for_programs_are_kept() -> None:
    blame = RetryState(failures=1)
    verdict = after_failure(
        blame, Needs(retries=1), "RAISED", {"text": "no luck", "error": "packed"}
    )
    told = {"text": "no luck\n(attempt 2 of 2)", "error": "packed"}
    assert verdict == GiveUp("RAISED", told)


def test_the_delay_doubles_up_to_a_limit() -> None:
    blame = RetryState()
    delays = []
    for _ in range(RETRIES_MAX):
        verdict = after_failure(blame, Needs(retries=RETRIES_MAX), "RUNTIME_ERROR", "")
        assert isinstance(verdict, Retry)
        delays.append(verdict.delay_s)
    assert delays[:4] == [0.2, 0.4, 0.8, 1.6]
    assert delays == sorted(delays)
    assert delays[-1] == BACK_OFF_MAX_S


def test_only_the_named_failures_are_retried() -> None:
    needs, blame = Needs(retries=2, retry_on=("TIMED_OUT", "SIGNAL")), RetryState()
    assert after_failure(blame, needs, "SIGNAL", "") == Retry(BACK_OFF_FIRST_S)
    verdict = after_failure(blame, needs, "RUNTIME_ERROR", "exit status 3")
    text = "exit status 3\n(attempt 2 of 3; it is retried only after TIMED_OUT, SIGNAL)"
    assert verdict == GiveUp("RUNTIME_ERROR", text)


@pytest.mark.parametrize("reason, first_s", BACK_OFF_FIRST_BY_KIND_S.items())
def test_failures_that_take_longer_to_pass_have_a_longer_first_delay(
    reason: str, first_s: float
) -> None:
    assert first_s > BACK_OFF_FIRST_S
    assert after_failure(RetryState(), Needs(retries=1), reason, "") == Retry(first_s)


@pytest.mark.parametrize("first_s, expected", [(5.0, [5, 10, 20, 30, 30]), (60.0, [60] * 5)])
def test_the_first_delay_can_be_set(first_s: float, expected: list[float]) -> None:
    needs, blame = Needs(retries=9, retry_delay_s=first_s), RetryState()
    verdicts = [after_failure(blame, needs, "NO_SPACE", "") for _ in expected]
    assert verdicts == [Retry(delay_s) for delay_s in expected]


@pytest.mark.parametrize("reason", sorted(NOT_RETRIED))
def test_a_failure_that_would_repeat_is_not_retried(reason: str) -> None:
    assert after_failure(RetryState(), Needs(retries=5), reason, "so it is") == GiveUp(
        reason, "so it is"
    )


def test_a_task_fails_when_it_loses_its_third_worker() -> None:
    blame = RetryState()
    verdicts = [after_worker_loss(blame, f"w{number}") for number in range(1, 4)]
    assert verdicts[:2] == [Retry(0.0), Retry(0.0)]
    assert isinstance(verdicts[2], GiveUp)
    assert verdicts[2].reason == "WORKER_FAILED"
    assert verdicts[2].details.startswith("3 workers died while they ran this task, the last was")
    assert WORKER_LOSSES_MAX == 3


def test_lost_workers_use_up_no_retries() -> None:
    blame = RetryState()
    after_worker_loss(blame, "w1")
    after_worker_loss(blame, "w2")
    assert after_failure(blame, Needs(retries=1), "RUNTIME_ERROR", "") == Retry(BACK_OFF_FIRST_S)
