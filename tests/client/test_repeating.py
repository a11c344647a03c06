"""Tests that a client which starts over releases no object that it wants again."""

from ciel.client.connection.repeating import to_repeat
from ciel.core.events import CloseJob, Message, ReleaseObjects, WantObjects
from ciel.core.ids import JobId, ObjectId

JOB = JobId("j")
A, B = ObjectId("a"), ObjectId("b")


def test_an_object_that_is_wanted_again_is_not_released_meanwhile() -> None:
    release, want = ReleaseObjects(JOB, (A, B)), WantObjects(JOB, (A,))
    assert to_repeat([release, want]) == [ReleaseObjects(JOB, (B,)), want]
    assert to_repeat([ReleaseObjects(JOB, (A,)), want, CloseJob(JOB)]) == [
        ReleaseObjects(JOB, ()),
        want,
        CloseJob(JOB),
    ]


def test_a_release_after_the_want_stays() -> None:
    messages: list[Message] = [WantObjects(JOB, (A,)), ReleaseObjects(JOB, (A,))]
    assert to_repeat(messages) == messages


def test_a_release_for_good_stays() -> None:
    messages: list[Message] = [ReleaseObjects(JOB, (A,), for_good=True), WantObjects(JOB, (A,))]
    assert to_repeat(messages) == messages
