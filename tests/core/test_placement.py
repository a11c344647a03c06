import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.core.ids import ObjectId
from ciel.core.placement import (
    MEASURED_FROM_BYTES,
    OTHER_HOST_BYTES_PER_S,
    SAME_HOST_BYTES_PER_S,
    STREAM_BYTES,
    Bandwidths,
    Candidate,
    Load,
    loads_of,
    rank,
)
from ciel.core.refs import SocketStream, Stream, Sweetheart
from ciel.core.scheduling import SWEETHEART_FACTOR, read_scheduling
from ciel.testing.builders import failed, inline, stored

W1, W2, W3 = "w1:8001", "w2:8001", "w3:8001"
HOSTS = {W1: "h1", W2: "h2", W3: "h1"}
MIB = 1 << 20

candidates = st.lists(
    st.builds(
        Candidate,
        st.sampled_from([W1, W2, W3]),
        st.sampled_from(["h1", "h2"]),
        st.floats(0, 100),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda candidate: candidate.location,
)
loads = st.lists(
    st.builds(
        Load, st.integers(0, 1 << 63), st.frozensets(st.sampled_from([W1, W2, W3]), min_size=1)
    ),
    max_size=4,
)


def candidate(location: str, wait_s: float = 0.0) -> Candidate:
    return Candidate(location, HOSTS[location], wait_s)


def order(loads: list[Load], *candidates: Candidate) -> list[str]:
    return [choice.location for choice in rank(loads, candidates, HOSTS)]


@given(loads, candidates)
def test_every_candidate_is_ranked_once_cheapest_first(
    loads: list[Load], candidates: list[Candidate]
) -> None:
    choices = rank(loads, candidates, HOSTS)
    assert sorted(c.location for c in choices) == sorted(c.location for c in candidates)
    assert [c.cost_s for c in choices] == sorted(c.cost_s for c in choices)


@given(loads, candidates)
def test_ties_keep_the_candidates_order(loads: list[Load], candidates: list[Candidate]) -> None:
    costs = {c.location: c.cost_s for c in rank(loads, candidates, HOSTS)}
    expected = sorted((c.location for c in candidates), key=lambda location: costs[location])
    assert order(loads, *candidates) == expected


@given(loads, st.permutations([W1, W2, W3]))
def test_the_cost_of_a_worker_does_not_depend_on_the_other_candidates(
    loads: list[Load], names: list[str]
) -> None:
    together = {c.location: c.cost_s for c in rank(loads, [candidate(n) for n in names], HOSTS)}
    for name in names:
        assert rank(loads, [candidate(name)], HOSTS)[0].cost_s == together[name]


@pytest.mark.requirement("CIB-53")
def test_the_holder_ranks_first_then_its_host_then_other_hosts() -> None:
    held = [Load(MIB, frozenset((W1,)))]
    assert order(held, candidate(W2), candidate(W3), candidate(W1)) == [W1, W3, W2]


def test_the_holder_of_more_bytes_comes_first() -> None:
    held = [Load(MIB, frozenset((W1,))), Load(2 * MIB, frozenset((W2,)))]
    assert order(held, candidate(W1), candidate(W2)) == [W2, W1]


def test_a_copy_on_the_same_host_counts_whichever_worker_holds_it() -> None:
    held = [Load(MIB, frozenset((W2, W1)))]
    assert order(held, candidate(W3), candidate(W1)) == [W1, W3]
    assert rank(held, [candidate(W3)], HOSTS)[0].cost_s == MIB / SAME_HOST_BYTES_PER_S


@pytest.mark.requirement("CIB-53")
def test_a_holder_that_is_busy_for_long_loses_to_a_worker_that_must_fetch() -> None:
    held = [Load(100_000_000, frozenset((W1,)))]
    fetch_s = 100_000_000 / OTHER_HOST_BYTES_PER_S
    assert order(held, candidate(W1, fetch_s * 0.9), candidate(W2)) == [W1, W2]
    assert order(held, candidate(W1, fetch_s * 1.1), candidate(W2)) == [W2, W1]


def test_an_unknown_worker_counts_as_another_host() -> None:
    held = [Load(MIB, frozenset(("gone:8001",)))]
    assert rank(held, [candidate(W1)], HOSTS)[0].cost_s == MIB / OTHER_HOST_BYTES_PER_S


def test_the_reason_states_the_bytes_and_both_times() -> None:
    reason = rank([Load(100_000_000, frozenset((W1,)))], [candidate(W2, 0.25)], HOSTS)[0].reason
    assert reason == (
        "this worker has 100000000 bytes to fetch (about 1 s), and a free slot in about 0.25 s"
    )


def test_the_reason_says_that_a_worker_has_all_inputs() -> None:
    reason = rank([Load(100_000_000, frozenset((W1,)))], [candidate(W1, 0.25)], HOSTS)[0].reason
    assert reason == "this worker has all inputs, and a free slot in about 0.25 s"


@pytest.mark.requirement("CIB-42")
def test_an_input_from_another_host_waits_for_the_disk() -> None:
    held = [Load(100_000_000, frozenset((W2,)))]
    busy = Candidate(W1, "h1", 0.0, disk_s=3.0)
    assert rank(held, [busy], HOSTS)[0].cost_s == 4.0
    assert order(held, busy, candidate(W3)) == [W3, W1]


def test_an_input_on_the_same_host_waits_for_no_disk() -> None:
    busy = Candidate(W1, "h1", 0.0, disk_s=3.0)
    assert rank([Load(0, frozenset((W1,)))], [busy], HOSTS)[0].cost_s == 0
    assert rank([Load(0, frozenset((W3,)))], [busy], HOSTS)[0].cost_s == 0


def test_the_reason_mentions_a_busy_disk() -> None:
    busy = Candidate(W1, "h1", 0.25, disk_s=3.0)
    reason = rank([Load(100_000_000, frozenset((W2,)))], [busy], HOSTS)[0].reason
    assert reason == (
        "this worker has 100000000 bytes to fetch (about 1 s), disks that are busy for about 3 s, "
        "and a free slot in about 0.25 s"
    )


# --- measured bandwidths --------------------------------------------------------------------------

S_OF_MIB = MIB / OTHER_HOST_BYTES_PER_S


def test_a_measured_bandwidth_replaces_the_default() -> None:
    measured = Bandwidths()
    measured.learn("h2", "h1", 10 * MIB, 20.0)
    best = rank([Load(MIB, frozenset((W2,)))], [candidate(W1)], HOSTS, measured)[0]
    assert best.cost_s == pytest.approx(2.0)
    assert best.reason == (
        "this worker has 1048576 bytes to fetch (about 2 s, measured 0.524 MB/s), and a free slot "
        "in about 0 s"
    )


def test_a_copy_is_fetched_from_the_host_with_the_highest_bandwidth() -> None:
    measured = Bandwidths()
    measured.learn("h2", "h1", 10 * MIB, 20.0)
    held = Load(MIB, frozenset((W2, "h3:1")))
    hosts = {**HOSTS, "h3:1": "h3"}
    assert rank([held], [candidate(W1)], hosts, measured)[0].cost_s == pytest.approx(S_OF_MIB)
    measured.learn("h3", "h1", 10 * MIB, 10.0)
    assert rank([held], [candidate(W1)], hosts, measured)[0].cost_s == pytest.approx(1.0)


def test_recent_copies_weigh_most_in_a_bandwidth_and_small_ones_are_ignored() -> None:
    measured = Bandwidths()
    for run_s in (1.0, 3.0):
        measured.learn("a", "b", MEASURED_FROM_BYTES, run_s)
    assert measured.s_per_byte("a", "b") == pytest.approx(1.5 / MEASURED_FROM_BYTES)
    measured.learn("a", "b", MEASURED_FROM_BYTES - 1, 100.0)
    assert measured.s_per_byte("a", "b") == pytest.approx(1.5 / MEASURED_FROM_BYTES)
    assert measured.s_per_byte("b", "a") is None


def test_bandwidths_of_hosts_that_left_are_forgotten() -> None:
    measured = Bandwidths()
    for source, target in (("a", "b"), ("b", "a"), ("a", "c"), ("a", "a")):
        measured.learn(source, target, MEASURED_FROM_BYTES, 1.0)
    measured.keep_only({"a", "c"})
    assert len(measured) == 2
    assert measured.s_per_byte("a", "b") is None


# --- options of a job -----------------------------------------------------------------------------


def asked(loads: list[Load], *candidates: Candidate, **options: float) -> list[str]:
    scheduling = read_scheduling("locality", options)
    return [c.location for c in rank(loads, candidates, HOSTS, scheduling=scheduling)]


def test_a_saving_below_the_threshold_does_not_count() -> None:
    held = [Load(MIB, frozenset((W2,)))]
    both = candidate(W1, 0.001), candidate(W2, 0.002)
    assert asked(held, *both, min_saving_threshold=MIB) == [W2, W1]
    assert asked(held, *both, min_saving_threshold=MIB + 1) == [W1, W2]


def test_a_worker_that_holds_nearly_as_much_as_the_best_ranks_as_equal() -> None:
    held = [Load(10 * MIB, frozenset((W1, W2))), Load(MIB, frozenset((W1,)))]
    both = candidate(W1, 0.003), candidate(W2, 0.001)
    assert asked(held, *both) == [W1, W2]
    assert asked(held, *both, candidate(W3), equally_local_margin=0.9) == [W2, W1]
    assert asked(held, *both, candidate(W3), equally_local_margin=1.0) == [W1]


def test_the_reason_says_that_the_options_ignore_the_cost_of_copying() -> None:
    margin = read_scheduling("locality", {"equally_local_margin": 0.5})
    held = [Load(10 * MIB, frozenset((W1,)))]
    (only,) = rank(held, [candidate(W1, 0.25), candidate(W3)], HOSTS, scheduling=margin)
    assert only.reason == (
        "the policy's options ignore the cost of copying; this worker has a free slot in about "
        "0.25 s"
    )


def test_the_weight_of_a_sweetheart_can_be_set() -> None:
    ref = Sweetheart(ObjectId("a"), W1, 100, frozenset((W1,)))
    assert loads_of([ref], 2.5) == [Load(250, frozenset((W1,)))]


def test_inputs_without_a_location_weigh_nothing() -> None:
    assert loads_of([inline("a"), failed("b")]) == []


@pytest.mark.parametrize(
    "ref, expected",
    [
        (stored("a", W1, W2, size_bytes=7), Load(7, frozenset((W1, W2)))),
        (stored("a", W1)._replace(size_bytes=None), Load(STREAM_BYTES, frozenset((W1,)))),
        (
            Sweetheart(ObjectId("a"), W1, 7, frozenset((W1, W2))),
            Load(int(7 * SWEETHEART_FACTOR), frozenset((W1,))),
        ),
        (Stream(ObjectId("a"), frozenset((W2,))), Load(STREAM_BYTES, frozenset((W2,)))),
        (SocketStream(ObjectId("a"), W2, 9000), Load(STREAM_BYTES, frozenset((W2,)))),
    ],
)
def test_an_input_weighs_as_much_as_the_bytes_to_move(ref: object, expected: Load) -> None:
    assert loads_of([ref]) == [expected]  # type: ignore[list-item]  # references of the table


def test_an_empty_object_weighs_nothing() -> None:
    assert loads_of([stored("a", W1, size_bytes=0)]) == [Load(0, frozenset((W1,)))]


@pytest.mark.requirement("CIB-42")
def test_a_large_input_that_a_worker_has_waits_for_its_disk() -> None:
    replicas = [Load(MIB, frozenset((W1, W2)))]
    busy, idle = Candidate(W1, "h1", 0.0, disk_s=3.0), Candidate(W2, "h2", 1.0)
    assert [c.location for c in rank(replicas, [busy, idle], HOSTS)] == [W2, W1]
    small = [Load(1000, frozenset((W1, W2)))]
    assert [c.location for c in rank(small, [busy, idle], HOSTS)] == [W1, W2]


@pytest.mark.requirement("CIB-42")
def test_whoever_reads_from_a_busy_disk_waits_for_it() -> None:
    only = [Load(MIB, frozenset((W1,)))]
    busy, idle = Candidate(W1, "h1", 0.0, disk_s=3.0), Candidate(W2, "h2", 0.0)
    first, second = rank(only, [busy, idle], HOSTS)
    assert (first.location, first.disk_s) == (W1, 3.0)
    assert (second.location, second.disk_s) == (W2, 3.0)
