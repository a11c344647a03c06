import pytest

from ciel.core.ids import ObjectId
from ciel.core.plans import HttpPlan, LinkPlan, Plan, StreamPlan, plans_for
from ciel.core.refs import Future, Reference, Stream, Sweetheart
from ciel.testing.builders import inline, stored

HOSTS = {"own:1": "h1", "near:1": "h1", "near:2": "h1", "far:1": "h2", "far:2": "h3"}
X = ObjectId("x")

TABLE: list[tuple[Reference, list[Plan]]] = [
    (stored("x", "far:1"), [HttpPlan("far:1")]),
    (stored("x", "near:1"), [LinkPlan("near:1"), HttpPlan("near:1")]),
    (
        stored("x", "far:2", "near:2", "far:1", "near:1"),
        [
            LinkPlan("near:1"), LinkPlan("near:2"),
            HttpPlan("near:1"), HttpPlan("near:2"), HttpPlan("far:1"), HttpPlan("far:2"),
        ],
    ),
    (stored("x", "own:1"), []),
    (stored("x", "own:1", "far:1"), [HttpPlan("far:1")]),
    (stored("x", "forged:80", "far:1"), [HttpPlan("far:1")]),
    (stored("x", "forged:80"), []),
    (stored("x"), []),
    (Sweetheart(X, "far:1", 1, frozenset(("far:1",))), [HttpPlan("far:1")]),
    (Stream(X, frozenset(("far:1", "forged:80"))), [StreamPlan("far:1")]),
    (Future(X), []),
    (inline("x"), []),
]  # fmt: skip


@pytest.mark.requirement("CIB-3")
@pytest.mark.parametrize("ref, plans", TABLE, ids=range(len(TABLE)))
def test_plans_prefer_links_then_the_same_host_and_never_use_unknown_addresses(
    ref: Reference, plans: list[Plan]
) -> None:
    assert list(plans_for(ref, "own:1", "h1", HOSTS)) == plans
