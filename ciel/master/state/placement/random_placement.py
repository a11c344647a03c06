"""The randomised placement policies of the original CIEL (see `core.scheduling`)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ciel.core.scheduling import RANDOM
from ciel.master.state.workers import WorkerNode


def draw(
    policy: str, able: Sequence[WorkerNode], slots: int, random: Random
) -> tuple[WorkerNode, str]:
    """Return a random worker for a task that needs `slots`, and the reason for users."""
    if policy == RANDOM:
        drawn = random.choices(able, [worker.facts.slots for worker in able])[0]
        return drawn, f"the policy random drew this worker among {len(able)}"
    if len(able) == 1:
        return able[0], "no other worker can run it"
    best, other = sorted(random.sample(able, 2), key=lambda worker: worker.wait_s(slots))
    return best, (
        f"the policy tworandom drew this worker and worker {other.facts.id}, and this one has a "
        f"slot sooner: in about {best.wait_s(slots):.3g} s, not {other.wait_s(slots):.3g} s"
    )
