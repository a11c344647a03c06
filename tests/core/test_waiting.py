from hypothesis import given
from hypothesis import strategies as st

from ciel.core.graph.waiting import LIST_MAX_LENGTH, Waiting

OBJECTS = ("a", "b", "c")
waiters, objects = st.integers(0, 40), st.sampled_from(OBJECTS)
steps = st.lists(
    st.tuples(st.just("wait"), waiters, st.sets(objects, min_size=1))
    | st.tuples(st.just("release"), objects, st.none())
    | st.tuples(st.just("forget"), waiters, st.none()),
    max_size=80,
)


@given(steps)
def test_the_waiting_table_agrees_with_a_table_of_sets(
    steps: list[tuple[str, object, set[str] | None]],
) -> None:
    waiting: Waiting[int] = Waiting()
    model: dict[int, set[str]] = {}  # in the order of their arrival
    for step, subject, objects in steps:
        if step == "release":
            assert isinstance(subject, str)
            before = list(model)
            for missing in model.values():
                missing.discard(subject)
            ready = [waiter for waiter in before if not model[waiter]]
            assert waiting.release(subject) == ready
            for waiter in ready:
                del model[waiter]
        else:
            assert isinstance(subject, int)
            if step == "forget":
                waiting.forget(subject, OBJECTS)
                model.pop(subject, None)
            elif objects is not None and subject not in model:
                waiting.wait(subject, sorted(objects))
                model[subject] = set(objects)
        assert len(waiting) == len(model)
        for waiter in range(41):
            assert (waiter in waiting) == (waiter in model)
            assert waiting.missing_of(waiter) == len(model.get(waiter, ()))
        for name in OBJECTS:
            assert waiting.waiters_of(name) == [
                w for w, missing in model.items() if name in missing
            ]
            assert waiting.is_awaited(name) == bool(waiting.waiters_of(name))


def test_a_waiter_is_released_with_the_last_of_its_objects() -> None:
    waiting: Waiting[str] = Waiting()
    waiting.wait("total", ["a", "b"])
    assert waiting.release("a") == []
    assert waiting.release("a") == []
    assert waiting.release("b") == ["total"]
    assert waiting.release("b") == []
    assert len(waiting) == 0


def test_many_waiters_are_released_in_their_order_of_arrival() -> None:
    waiting: Waiting[int] = Waiting()
    everyone = list(range(3 * LIST_MAX_LENGTH))
    for waiter in everyone:
        waiting.wait(waiter, ["a"])
    for waiter in everyone[::2]:
        waiting.forget(waiter, ["a"])
    assert waiting.release("a") == everyone[1::2]


def test_a_forgotten_waiter_leaves_nothing_behind() -> None:
    waiting: Waiting[int] = Waiting()
    for waiter in range(2 * LIST_MAX_LENGTH):
        waiting.wait(waiter, ["a", "b"])
    for waiter in range(2 * LIST_MAX_LENGTH):
        waiting.forget(waiter, ["a", "b"])
    assert len(waiting) == 0
    assert not waiting.is_awaited("a")
    assert waiting.release("b") == []


def test_a_task_that_does_not_wait_can_be_forgotten() -> None:
    waiting: Waiting[str] = Waiting()
    waiting.wait("total", ["a"])
    waiting.forget("other", ["a"])
    assert waiting.release("a") == ["total"]
