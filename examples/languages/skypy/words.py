"""Count the words of texts: a script for the executor `skypy`. One task counts each text."""

from ciel_task import Ref
from skypy import deref, deref_as_raw_file, spawn  # type: ignore[import-not-found]  # beside the stub


def main(*texts: Ref) -> int:
    """Count the words of all texts."""
    counts = [spawn("count", text) for text in texts]
    return sum(map(deref, counts))


def count(text: Ref) -> int:
    """Count the words of one text."""
    with deref_as_raw_file(text) as file:
        return sum(len(line.split()) for line in file)
