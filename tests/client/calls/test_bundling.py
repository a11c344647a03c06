"""Calls that are sent together, and calls that are held back."""

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ciel.client.calls import bundling


class Function:
    trial_count = 0


class Call:
    def __init__(
        self,
        *,
        function: Function | None = None,
        may_wait: bool = True,
        divisible: bool = False,
        usual: bool = True,
        call_s: float | None = None,
        producers: Sequence[Any] = (),
        outside: frozenset[str] = frozenset(),
        size_bytes: int = 10,
    ) -> None:
        self.function = function or Function()
        self.may_wait, self.is_held, self.is_divisible = may_wait, False, divisible
        self.may_be_bundled = usual
        self.call_s = call_s
        self.producers = list(producers)
        self.outside = outside
        self.size_bytes = size_bytes


def sizes(waiting: Sequence[Call], slots: int = 2) -> list[int]:
    return [len(bundle) for bundle in bundling.form(waiting, slots)]


def test_few_calls_are_sent_alone() -> None:
    assert sizes([Call() for _ in range(16)]) == [1] * 16


def test_calls_of_a_new_function_are_sent_alone() -> None:
    assert sizes([Call() for _ in range(100)]) == [1] * 100


def test_a_few_calls_show_how_long_a_function_takes_and_the_others_wait_for_that() -> None:
    function = Function()
    calls = [Call(function=function) for _ in range(100)]
    sent, held = bundling.hold_back(calls, 2)
    assert (sent, held) == (calls[:16], calls[16:])
    for call in held:
        call.call_s = 0.001
    assert bundling.hold_back(held, 2) == (held, [])


def test_calls_that_cannot_be_held_back_are_sent() -> None:
    function = Function()
    calls = [Call(function=function, may_wait=False) for _ in range(100)]
    assert bundling.hold_back(calls, 2) == (calls, [])


def test_a_call_that_takes_the_result_of_one_held_back_is_held_back() -> None:
    function = Function()
    calls = [Call(function=function) for _ in range(17)]
    calls.append(Call(call_s=0.001, producers=calls[-1:]))
    assert bundling.hold_back(calls, 2) == (calls[:16], calls[16:])


def test_parts_of_a_map_wait_for_one_call_that_shows_how_long_a_row_takes() -> None:
    function = Function()
    calls = [Call(function=function, may_wait=False)]
    calls += [Call(function=function, divisible=True) for _ in range(4)]
    assert bundling.hold_back(calls, 2) == (calls[:1], calls[1:])


def test_a_part_of_a_map_takes_a_tenth_of_a_second() -> None:
    assert bundling.part_rows(100_000, 2, None) == 3125
    assert bundling.part_rows(100_000, 2, 0.005) == 24
    assert bundling.part_rows(100_000, 2, 1.0) == 1


def test_quick_calls_are_bundled_as_soon_as_there_are_two_for_a_bundle() -> None:
    assert sizes([Call(call_s=1e-5) for _ in range(8)]) == [2] * 4


def test_slow_calls_are_sent_alone_however_many() -> None:
    assert sizes([Call(call_s=1.0) for _ in range(100)]) == [1] * 100


def test_a_bundle_takes_no_longer_than_it_should() -> None:
    assert max(sizes([Call(call_s=0.004) for _ in range(1000)])) == 12


def test_calls_with_options_are_sent_alone() -> None:
    assert sizes([Call(usual=False, call_s=1e-6) for _ in range(100)]) == [1] * 100


def test_large_arguments_keep_a_bundle_small() -> None:
    assert max(sizes([Call(call_s=1e-6, size_bytes=1 << 19) for _ in range(100)])) <= 3


def test_a_chain_is_one_bundle_even_if_nothing_is_known() -> None:
    chain = [Call()]
    for _ in range(50):
        chain.append(Call(producers=chain[-1:]))
    assert sizes(chain) == [51]
    assert bundling.hold_back(chain, 2) == (chain, [])


def test_two_that_take_the_same_result_may_run_side_by_side() -> None:
    first = Call()
    assert sizes([first, Call(producers=[first]), Call(producers=[first])]) == [2, 1]


def test_a_call_that_takes_results_of_two_bundles_is_in_neither() -> None:
    one, other = Call(), Call()
    assert sizes([one, other, Call(producers=[one, other])]) == [1, 1, 1]


def test_calls_that_wait_for_different_things_do_not_wait_for_each_other() -> None:
    waiting = [Call(call_s=1e-5, outside=frozenset(str(n % 2))) for n in range(100)]
    for bundle in bundling.form(waiting, 2):
        assert len({call.outside for call in bundle}) == 1


@st.composite
def _waiting(draw: st.DrawFn) -> list[Call]:
    calls: list[Call] = []
    for _ in range(draw(st.integers(0, 60))):
        local = draw(st.lists(st.sampled_from(calls), max_size=3, unique=True)) if calls else []
        calls.append(
            Call(
                usual=draw(st.booleans()),
                call_s=draw(st.sampled_from([None, 1e-5, 0.004, 1.0])),
                producers=local,
                outside=draw(st.sampled_from([frozenset(), frozenset("a"), frozenset("b")])),
            )
        )
    return calls


@pytest.mark.slow
@given(_waiting(), st.integers(1, 8))
def test_every_call_is_sent_once_and_after_its_dependencies(
    waiting: list[Call], slots: int
) -> None:
    bundles = bundling.form(waiting, slots)
    sent = [call for bundle in bundles for call in bundle]
    assert sorted(map(id, sent)) == sorted(map(id, waiting))
    home = {id(call): number for number, bundle in enumerate(bundles) for call in bundle}
    for bundle in bundles:
        assert bundle
        for place, call in enumerate(bundle):
            for other in call.producers:
                assert home[id(other)] <= home[id(call)]
                if other in bundle:
                    assert bundle.index(other) < place


@pytest.mark.slow
@given(_waiting(), st.integers(1, 8))
def test_bundles_do_not_depend_on_each_other_in_a_circle(waiting: list[Call], slots: int) -> None:
    bundles = bundling.form(waiting, slots)
    home = {id(call): number for number, bundle in enumerate(bundles) for call in bundle}
    for bundle in bundles:
        for call in bundle:
            assert all(home[id(other)] <= home[id(call)] for other in call.producers)


def test_a_bundle_takes_as_long_as_a_bundle_may() -> None:
    call_s = bundling.SLOW_S / 2
    calls = [Call(call_s=call_s) for _ in range(10_000)]
    assert set(sizes(calls)[:-1]) == {int(bundling.BUNDLE_S / call_s)}
