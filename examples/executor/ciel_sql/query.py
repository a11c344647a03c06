"""The ordinary program that a task runs, in a directory with its tables."""

from __future__ import annotations

import csv
import sqlite3
import sys
import threading
from pathlib import Path

BAD_QUERY = 3


def main() -> int:
    """Print the result of a query as a table."""
    query, time_limit_s = sys.argv[1], float(sys.argv[2])
    database = sqlite3.connect(":memory:", check_same_thread=False)
    for path in sorted(Path().glob("*.csv")):
        _load(database, path)
    limit = threading.Timer(time_limit_s, database.interrupt)
    limit.daemon = True
    limit.start()
    try:
        found = database.execute(query)
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow([column[0] for column in found.description])
        out.writerows(found)
    except sqlite3.Error as error:
        print(f"sql: {error}", file=sys.stderr)
        return BAD_QUERY
    finally:
        limit.cancel()
    return 0


def _load(database: sqlite3.Connection, path: Path) -> None:
    """Create a table from a file; values that look like numbers are stored as numbers."""
    with path.open(newline="") as file:
        rows = csv.reader(file)
        columns = ", ".join(f'"{name}" NUMERIC' for name in next(rows))
        database.execute(f"CREATE TABLE {path.stem} ({columns})")
        marks = ", ".join("?" * (columns.count(",") + 1))
        database.executemany(f"INSERT INTO {path.stem} VALUES ({marks})", rows)


if __name__ == "__main__":
    sys.exit(main())
