"""The store of another package (`ciel_rows`), by the suite of all stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ciel.storage.interface import ObjectStore
from ciel.testing.store_suite import StoreSuite
from ciel_rows.store import RowStore


@pytest.mark.requirement("CIB-54")
class TestRowStore(StoreSuite):
    capabilities = RowStore.capabilities

    def make_store(self, where: Path, *, capacity_bytes: int | None = None) -> ObjectStore:
        return RowStore(where / "rows", capacity_bytes or 32 << 20)

    def raw_get(self, where: Path, object_id: str) -> bytes | None:
        with closing(database_of(where)) as rows:
            if rows.execute("SELECT 1 FROM objects WHERE id = ?", (object_id,)).fetchone() is None:
                return None
            query = "SELECT content FROM pieces WHERE id = ? ORDER BY number"
            return b"".join(content for (content,) in rows.execute(query, (object_id,)))

    def raw_put(self, where: Path, object_id: str, content: bytes) -> None:
        with closing(database_of(where)) as rows, rows:
            rows.execute("INSERT INTO objects VALUES (?, ?, NULL)", (object_id, len(content)))
            rows.execute("INSERT INTO pieces VALUES (?, 0, ?)", (object_id, content))

    def raw_damage(self, where: Path, object_id: str) -> None:
        content = bytearray(self.raw_get(where, object_id) or b"")
        content[len(content) // 2] ^= 4
        with closing(database_of(where)) as rows, rows:
            rows.execute("DELETE FROM pieces WHERE id = ?", (object_id,))
            rows.execute("INSERT INTO pieces VALUES (?, 0, ?)", (object_id, bytes(content)))


def database_of(where: Path) -> sqlite3.Connection:
    return sqlite3.connect(where / "rows" / "objects.db")
