"""The master's description of how messages and objects reach each worker (CIB-53)."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.transports import AUTO, RING, SOCKET, TCP, End
from ciel.master.service import PLACES_MAX, worker_facts
from ciel.master.state.machine import MasterMachine
from ciel.master.state.queries.transports import describe
from ciel.testing.builders import a_worker

OWN = End(AUTO, (RING,), 8)
ABOUT: dict[str, Any] = {
    "worker": "w1", "netloc": "host1:9001", "host": "h", "slots": 1, "executors": [],
}  # fmt: skip


def described(carriers: dict[str, str], *workers: End) -> list[dict[str, Any]]:
    machine = MasterMachine()
    for number, end in enumerate(workers, 1):
        machine.worker_joined(a_worker(f"w{number}")._replace(end=end), 0.0)
    return describe(machine, OWN, carriers)


@pytest.mark.requirement("CIB-53")
def test_a_choice_is_compared_with_what_carries_the_messages() -> None:
    ring, socket, tcp, gone = described({"w1": RING, "w2": SOCKET, "w3": TCP}, *[OWN] * 4)
    assert ring["control"]["way"] == RING
    assert ring["control"]["reason"].startswith("both daemons are on one host with 8 cores")
    assert socket["control"] == {
        "way": SOCKET,
        "reason": "ring suits it, but could not be opened; the logs of both daemons say why",
    }
    assert tcp["control"] == {
        "way": TCP,
        "reason": "the worker reaches the master over the network",
    }
    assert gone["control"] == {"way": None, "reason": "it is not connected now"}


@pytest.mark.requirement("CIB-53")
def test_each_worker_lists_all_others_as_sources() -> None:
    found = described({}, OWN, OWN, OWN)
    assert [[item["from"] for item in worker["objects"]] for worker in found] == [
        ["w2", "w3"], ["w1", "w3"], ["w1", "w2"],
    ]  # fmt: skip


def test_a_worker_describes_its_end_and_its_store() -> None:
    facts = worker_facts(ABOUT | OWN.described() | {"user": 7, "places": ["files:1"]})
    assert facts.end == OWN
    assert facts.store == ("h", 7, ("files:1",))
    assert worker_facts(ABOUT).store == ("h", None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"user": "root"}, {"user": True}, {"places": "files:1"}, {"places": [1]},
        {"places": ["\n"]}, {"places": ["x" * 129]}, {"places": ["x"] * (PLACES_MAX + 1)},
    ],
)  # fmt: skip
def test_a_store_that_is_described_wrongly_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"its {next(iter(wrong))} must be"):
        worker_facts(ABOUT | wrong)
