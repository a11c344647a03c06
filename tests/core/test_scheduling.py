import pytest

from ciel.core.errors import InvalidSchedulingError
from ciel.core.scheduling import DEFAULT_SCHEDULING, Scheduling, read_scheduling


def test_the_default_options_are_one_shared_value() -> None:
    assert read_scheduling("locality", {}) is DEFAULT_SCHEDULING


def test_options_can_be_given_in_any_order() -> None:
    options = {"sweetheart_factor": 5, "min_saving_threshold": 1e6}
    read = read_scheduling("locality", options)
    assert read == read_scheduling("locality", dict(reversed(options.items())))
    assert read.option("sweetheart_factor", 1000.0) == 5.0
    assert read.option("equally_local_margin", 0.25) == 0.25


@pytest.mark.parametrize("policy", ["tworandom", "random"])
def test_the_other_policies_have_no_options(policy: str) -> None:
    assert read_scheduling(policy) == Scheduling(policy)
    with pytest.raises(InvalidSchedulingError, match=f"{policy} has no option 'sweetheart_factor'"):
        read_scheduling(policy, {"sweetheart_factor": 1})


@pytest.mark.parametrize(
    "policy, options, message",
    [
        ("best", {}, "unknown policy 'best' .the policies are: locality, tworandom, random"),
        (
            "locality",
            {"margin": 1},
            "locality has no option 'margin' .its options are: min_saving_thr",
        ),
        ("locality", {"equally_local_margin": 1.5}, "must be a number, 0 to 1, not 1.5"),
        ("locality", {"equally_local_margin": True}, "must be a number, 0 to 1, not True"),
        ("locality", {"min_saving_threshold": -1}, "must be a number, 0 to"),
        ("locality", {"min_saving_threshold": float("nan")}, "must be a number"),
        ("locality", {"sweetheart_factor": "2"}, "must be a number"),
    ],
)
def test_an_unknown_policy_or_option_is_refused_by_name(
    policy: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidSchedulingError, match=message):
        read_scheduling(policy, options)
