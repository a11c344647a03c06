"""The named resources of a worker: who gets them, which indices, and in which order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ciel.core.ids import ObjectId, TaskId
from ciel.core.offers.resources import ONE, Amounts, Given, read_amounts, read_offer
from ciel.core.refs import Fixed
from ciel.core.tasks import TaskSpec
from ciel.testing.builders import a_task, stored
from ciel.worker.state.orders import Key, Phase, StartAttempt
from ciel.worker.state.resource_pool import ResourcePool
from ciel_tests.scenes.worker import HERE, A, Played, copied, fetch, report, start

GPUS = "gpu=[0-1]"
_WAYS = [
    {"gpu": 1}, {"gpu": 2}, {"gpu": 3}, {"gpu": 0.5}, {"gpu": 0.3}, {"gpu": 1.7}, {"x": 1},
    {"x": 0.5, "gpu": 0.2}, {"gpu": 2, "x": 2},
]  # fmt: skip


def needing(name: str, *, inputs: tuple[str, ...] = (), **amounts: Any) -> TaskSpec:
    spec = a_task(name, inputs=inputs)
    return spec._replace(needs=spec.needs._replace(resources=read_amounts(amounts)))


def key(number: int) -> Key:
    return TaskId(f"t{number}"), 1


def starts(played: Played) -> dict[str, Given]:
    """Return the attempts that are ordered to start, with their indices."""
    orders = [order for order in played.machine.orders if isinstance(order, StartAttempt)]
    played.forget()
    assert not [*played.machine.problems()]
    return {order.spec.outputs[0]: order.given for order in orders}


# --- the pool -------------------------------------------------------------------------------------


def test_a_fraction_stays_on_one_index_and_fills_it_before_others() -> None:
    pool = ResourcePool([read_offer(GPUS)])
    for number, share in enumerate((0.5, 0.3, 0.2, 0.6)):
        assert pool.ask(key(number), read_amounts({"gpu": share}))
    indices = [dict(pool.given(key(number)))["gpu"] for number in range(4)]
    assert [index for ((index, _),) in indices] == ["0", "0", "0", "1"]
    assert not pool.ask(key(4), read_amounts({"gpu": 0.5}))


def test_whole_indices_and_a_fraction_are_given_together() -> None:
    pool = ResourcePool([read_offer("gpu=[0-2]")])
    assert pool.ask(key(0), read_amounts({"gpu": 0.5}))
    assert pool.ask(key(1), read_amounts({"gpu": 2.5}))
    assert pool.given(key(1)) == (("gpu", (("1", ONE), ("2", ONE), ("0", 5000))),)


def test_free_halves_of_two_indices_are_not_one_index() -> None:
    pool = ResourcePool([read_offer(GPUS)])
    for number in range(4):
        pool.ask(key(number), read_amounts({"gpu": 0.5}))
    pool.leave(key(0))
    pool.leave(key(2))
    assert not pool.ask(key(4), read_amounts({"gpu": 1}))
    assert not pool.ask(key(5), read_amounts({"gpu": 0.5}))  # it does not overtake
    assert pool.leave(key(1)) == [key(4), key(5)]
    assert dict(pool.given(key(4)))["gpu"] == (("0", ONE),)


# --- the machine ----------------------------------------------------------------------------------


def test_a_task_gets_its_indices_when_it_starts() -> None:
    played = Played(slots=4, resources=GPUS)
    for name in "de":
        played.assign(needing(name, gpu=1))
    assert starts(played) == {
        "d": (("gpu", (("0", ONE),)),),
        "e": (("gpu", (("1", ONE),)),),
    }


def test_a_task_that_waits_for_resources_delays_no_others() -> None:
    played = Played(slots=2, resources=GPUS)
    first, second = needing("d", gpu=2), needing("e", gpu=1)
    played.assign(first)
    played.assign(second)
    played.assign(A)
    assert starts(played) == {"d": (("gpu", (("0", ONE), ("1", ONE))),), "a": ()}
    assert played.machine.attempts[second.id, 1].phase is Phase.SHORT
    played.ended(A)
    assert starts(played) == {}
    played.ended(first)
    assert starts(played) == {"e": (("gpu", (("0", ONE),)),)}


def test_a_cancelled_task_lets_the_next_one_start() -> None:
    played = Played(slots=1, resources="gpu=1")
    played.run(A)
    queued, short = needing("d", gpu=1), needing("e", gpu=1)
    played.assign(queued)  # it has the resource, and waits for a slot
    played.assign(short)
    played.cancel(queued)
    played.forget()
    assert not [*played.machine.problems()]
    played.ended(A)
    assert starts(played) == {"e": ()}


def test_a_recalled_task_gives_up_its_wait() -> None:
    played = Played(slots=4, resources="gpu=1")
    first, second, third = (needing(name, gpu=1) for name in "def")
    for spec in (first, second, third):
        played.assign(spec)
    played.recall(second)
    played.forget()
    played.ended(first)
    assert starts(played) == {"f": ()}


def test_a_task_whose_input_was_dropped_holds_no_resources_while_it_fetches() -> None:
    played = Played(slots=1, resources="gpu=1")
    played.run(A)
    played.machine.uploaded(ObjectId("x"), played.now_s)
    played.assign(needing("d", inputs=("x",), gpu=1), stored("x", HERE))
    played.forget()
    played.machine.dropped(ObjectId("x"))
    played.ended(A)
    played.comes(fetch("x", HERE)._replace(plans=()), report(A))
    other = needing("e", gpu=1)
    played.assign(other)
    assert starts(played) == {"e": ()}
    played.fetched("x")
    played.comes(copied("x"))
    played.ended(other)
    assert starts(played) == {"d": ()}


def test_a_new_master_finds_the_resources_of_tasks_that_have_not_started_free() -> None:
    played = Played(slots=1, resources="gpu=1")
    played.run(A)
    played.assign(needing("d", gpu=1))
    played.assign(needing("e", gpu=1))
    played.machine.master_restarted([])
    played.forget()
    played.assign(needing("f", gpu=1))
    played.ended(A)
    assert starts(played) == {"f": ()}


def test_a_suspended_program_continues_with_the_indices_that_it_had() -> None:
    played = Played(slots=4, resources=GPUS)
    other, suspends = needing("d", gpu=1), needing("e", gpu=1)
    played.assign(other)
    played.assign(suspends)
    assert starts(played)["e"] == (("gpu", (("1", ONE),)),)
    fixed = Fixed(ObjectId("f"), HERE)
    played.ended(suspends, fixed)
    played.ended(other)
    taker, continues = needing("g", gpu=1), needing("h", inputs=("f",), gpu=1)
    blocker = needing("i", gpu=1)
    played.assign(taker)
    played.assign(blocker)
    assert starts(played) == {"g": (("gpu", (("0", ONE),)),), "i": (("gpu", (("1", ONE),)),)}
    played.assign(continues, fixed)
    played.ended(taker)
    assert starts(played) == {}, "index 0 is free, but the program has opened index 1"
    played.ended(blocker)
    assert starts(played) == {"h": (("gpu", (("1", ONE),)),)}


def test_children_that_need_resources_or_labels_are_left_to_the_master() -> None:
    played = Played(slots=4, starts_locally="stdinout", resources="gpu=2")
    played.run(A)
    plain = a_task("p", parent=A)
    for child in (plain._replace(needs=needing("x", gpu=1).needs),
                  plain._replace(needs=plain.needs._replace(where="zone=b"))):  # fmt: skip
        played.machine.spawned((A.id, 1), child, (), played.now_s)
        assert starts(played) == {}
    played.machine.spawned((A.id, 1), plain, (), played.now_s)
    assert starts(played) == {"p": ()}


def test_a_task_that_needs_what_the_worker_lacks_fails_at_once() -> None:
    played = Played(slots=1, resources="gpu=1")
    spec = needing("d", gpu=2)
    played.assign(spec)
    (ended,) = played.machine.reports
    assert getattr(ended, "fault", None).reason == "WORKER_FAULT"  # type: ignore[union-attr]  # a TaskReported
    assert start(spec) not in played.machine.orders


@given(st.lists(st.tuples(st.sampled_from(_WAYS), st.integers(-1, 1), st.booleans()), max_size=40))
def test_resources_are_never_given_twice_and_no_attempt_starves(
    steps: list[tuple[dict[str, Any], int, bool]],
) -> None:
    pool = ResourcePool([read_offer("gpu=[0-2]"), read_offer("x=2")])
    asked: dict[Key, Amounts] = {}
    for number, (amounts, priority, ends_one) in enumerate(steps):
        asked[key(number)] = read_amounts(amounts)
        pool.ask(key(number), asked[key(number)], priority)
        if ends_one:
            having = [k for k in asked if pool.has(k)]
            pool.leave(having[number % len(having)])
            del asked[having[number % len(having)]]
        assert not [*pool.problems()]
        assert {k for k in asked if not pool.has(k)} == set(pool.waiting)
    while asked:
        having = [k for k in asked if pool.has(k)]
        assert having, "attempts wait, although nothing is taken"
        for given_one in having:
            first = next(iter(pool.waiting), None)
            admitted = pool.leave(given_one)
            del asked[given_one]
            assert not [*pool.problems()]
            if admitted and first is not None and not pool.has(first):
                shared = {name for name, _ in asked[first]}
                others = {name for k in admitted for name, _ in asked[k]}
                assert shared.isdisjoint(others), "a later attempt has overtaken the first one"
