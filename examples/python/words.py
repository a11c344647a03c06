"""Prints the most frequent words of some files.

A Python function reads each file, the programs `sort` and `uniq` process the results of all these
calls, and a last function selects the words.

    python examples/python/words.py [FILE ...]
"""

import re
import sys
from pathlib import Path

import ciel

MOST = 10


def words_of(path: Path) -> str:
    """Return the words of a file, one per line."""
    return "".join(f"{word}\n" for word in re.findall("[a-z]+", path.read_text().lower()))


def most_of(table: bytes) -> list[tuple[str, int]]:
    """Return the most frequent words in the output of `uniq -c`."""
    rows = [line.split() for line in table.decode().splitlines()]
    return sorted([(word, int(count)) for count, word in rows], key=lambda row: (-row[1], row[0]))


def main() -> None:
    """Count on the cluster."""
    paths = [Path(name).absolute() for name in sys.argv[1:]] or [Path(__file__).absolute()]
    with ciel.Client() as client:
        words = [client.submit(words_of, path) for path in paths]
        in_order = client.run(["sort"], stdin=words, env={"LC_ALL": "C"})
        counted = client.run(["uniq", "-c"], stdin=in_order)
        most = client.submit(most_of, counted)
        for word, count in most.result()[:MOST]:
            print(f"{count:6} {word}")


if __name__ == "__main__":
    main()
