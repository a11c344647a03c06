from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from ciel.storage.eviction import Scene, Step, Way, steps_to_free

SIZES = {"oldest": 10, "older": 20, "newer": 30, "newest": 40}


def steps(
    wanted_bytes: int,
    sizes: Mapping[str, int] = SIZES,
    *,
    in_use: Collection[str] = (),
    below: Collection[str] = (),
    room_bytes: int | None = None,
    again: Collection[str] = (),
) -> list[Step]:
    scene = Scene(sizes, in_use, below, room_bytes, lambda object_id: object_id in again)
    return list(steps_to_free(wanted_bytes, scene))


def test_the_least_recently_used_objects_are_moved_and_no_more_than_needed() -> None:
    expected = [Step("oldest", 10, Way.MOVE), Step("older", 20, Way.MOVE)]
    assert steps(11) == steps(30) == expected
    assert steps(0) == []


def test_objects_that_cost_nothing_leave_before_any_is_moved() -> None:
    found = steps(75, below={"newest"}, again={"newer"})
    assert [(step.object_id, step.way) for step in found] == [
        ("newer", Way.DROP), ("newest", Way.FORGET), ("oldest", Way.MOVE)
    ]  # fmt: skip


def test_an_object_in_use_stays_even_if_it_has_another_copy() -> None:
    found = steps(1000, in_use={"oldest", "newest"}, below={"oldest"}, again={"newest"})
    assert [step.object_id for step in found] == ["older", "newer"]


def test_objects_that_do_not_fit_below_stay_and_smaller_ones_move() -> None:
    assert [step.object_id for step in steps(1000, room_bytes=45)] == ["oldest", "older"]
    sizes = {"large": 50, "small": 5}
    assert [step.object_id for step in steps(1000, sizes, room_bytes=45)] == ["small"]
    assert steps(1000, room_bytes=0) == []


names = st.sampled_from(sorted(SIZES))


@given(
    wanted_bytes=st.integers(0, 120),
    in_use=st.sets(names),
    below=st.sets(names),
    again=st.sets(names),
    room_bytes=st.none() | st.integers(0, 120),
)
def test_enough_bytes_are_freed_or_all_that_can_be(
    wanted_bytes: int, in_use: set[str], below: set[str], again: set[str], room_bytes: int | None
) -> None:
    found = steps(wanted_bytes, in_use=in_use, below=below, room_bytes=room_bytes, again=again)
    leaving = [step.object_id for step in found]
    assert len(set(leaving)) == len(leaving)
    assert in_use.isdisjoint(leaving)
    moved_bytes = sum(step.size_bytes for step in found if step.way is Way.MOVE)
    assert room_bytes is None or moved_bytes <= room_bytes
    freed_bytes = sum(step.size_bytes for step in found)
    if freed_bytes < wanted_bytes:
        stays = SIZES.keys() - leaving - in_use
        assert not stays & (below | again)
        left_bytes = None if room_bytes is None else room_bytes - moved_bytes
        assert all(left_bytes is not None and SIZES[name] > left_bytes for name in stays)
