"""Explains which resources and labels workers have, for tasks that none of them can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ciel.core.offers.labels import read_where
from ciel.core.offers.resources import amount_text, amounts_text, totals_of
from ciel.core.tasks import Needs
from ciel.master.state.workers import WorkerFacts

LISTED_MAX = 5
"""The number of different offers, or sets of labels, in a text."""


def why_none_fits(needs: Needs, workers: Sequence[WorkerFacts]) -> str:
    """Name the resource or the labels that no worker has; empty if each is somewhere."""
    for name, amount in needs.resources:
        most = max([totals_of(facts.resources).get(name, 0) for facts in workers], default=0)
        if amount > most:
            return (
                f"no worker has {name}={amount_text(amount)} (offered: {_offered(name, workers)}): "
                f"ask for less, or start a worker with ciel-worker --resource {name}=…"
            )
    meant = [facts for facts in workers if read_where(needs.where)(facts.labels)]
    if not meant:
        return (
            f"no worker has labels for which {needs.where!r} is true ({_labels(workers)}): change "
            "the expression, or start a worker with ciel-worker --label NAME=VALUE"
        )
    if any(_has_all(needs, facts) for facts in workers) and not any(
        _has_all(needs, facts) for facts in meant
    ):
        asked = amounts_text(needs.resources)
        offered = "; ".join(dict.fromkeys([_of_one(facts) for facts in meant[:LISTED_MAX]]))
        return (
            f"no worker for which {needs.where!r} is true has {asked} (offered there: {offered}): "
            "change the expression, or ask for less"
        )
    return ""


def _has_all(needs: Needs, facts: WorkerFacts) -> bool:
    totals = totals_of(facts.resources)
    return all(amount <= totals.get(name, 0) for name, amount in needs.resources)


def _of_one(facts: WorkerFacts) -> str:
    return ", ".join(map(str, facts.resources)) or "nothing"


def _offered(name: str, workers: Iterable[WorkerFacts]) -> str:
    """List who offers a resource, or, if no worker does, which resources there are."""
    offers = [(offer, facts.id) for facts in workers for offer in facts.resources]
    of_name = [(offer, worker) for offer, worker in offers if offer.name == name]
    if of_name:
        return _listed([f"{amounts_text([offer[:2]])} on {worker}" for offer, worker in of_name])
    return _listed(sorted({offer.name for offer, _ in offers})) or "no resource at all"


def _labels(workers: Iterable[WorkerFacts]) -> str:
    counts = Counter([label_text(facts.labels.items()) for facts in workers])
    texts = [f"{text or 'none'} on {number} workers" if number > 1 else text or "none"
             for text, number in counts.items()]  # fmt: skip
    return f"their labels: {_listed(texts, '; ')}"


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Return labels for people."""
    return ", ".join([f"{name}={value}" for name, value in labels])


def _listed(texts: Sequence[str], mark: str = ", ") -> str:
    more = len(texts) - LISTED_MAX
    return mark.join(texts[:LISTED_MAX]) + (f"{mark}and {more} more" if more > 0 else "")
