"""Applies random operations to a store and to a dict, and compares them."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ciel.storage.errors import ObjectConflictError, ObjectNotFoundError
from ciel.storage.interface import ObjectReader, ObjectStore, ObjectWriter

# Few ids and few contents, so that several writers commit the same id.
IDS = st.sampled_from(["a", "a:out:0", "a.out-0", "A", "_"])
CONTENTS = st.sampled_from([b"", b"x", b"y" * 4096, bytes(range(256)) * 40])
HINTS = st.sampled_from([None, 0, 1, 4096, 50_000])
INDEX = st.integers(min_value=0, max_value=10)


class StoreWalk(RuleBasedStateMachine):
    """Applies the same operations to an empty store and to a dict. Closes the store at its end."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self.store = store
        self.model: dict[str, bytes] = {}
        self.writers: list[tuple[ObjectWriter, bytes]] = []
        self.readers: list[tuple[ObjectReader, bytes]] = []

    @rule(object_id=IDS, hint=HINTS)
    def begin(self, object_id: str, hint: int | None) -> None:
        self.writers.append((self.store.begin(object_id, size_hint_bytes=hint), b""))

    @precondition(lambda self: self.writers)
    @rule(index=INDEX, chunk=CONTENTS)
    def write(self, index: int, chunk: bytes) -> None:
        writer, written = self.writers[index % len(self.writers)]
        writer.write(chunk)
        assert writer.size_bytes == len(written + chunk)
        self.writers[index % len(self.writers)] = writer, written + chunk

    @precondition(lambda self: self.writers)
    @rule(index=INDEX)
    def commit(self, index: int) -> None:
        writer, written = self.writers.pop(index % len(self.writers))
        if self.model.setdefault(writer.object_id, written) == written:
            assert writer.commit().size_bytes == len(written)
            return
        try:
            writer.commit()
        except ObjectConflictError:
            return
        raise AssertionError("the store replaced the content of a committed object")

    @precondition(lambda self: self.writers)
    @rule(index=INDEX)
    def abort(self, index: int) -> None:
        self.writers.pop(index % len(self.writers))[0].abort()

    @rule(object_id=IDS)
    def open(self, object_id: str) -> None:
        try:
            reader = self.store.open(object_id)
        except ObjectNotFoundError:
            assert object_id not in self.model
            return
        self.readers.append((reader, self.model[object_id]))

    @precondition(lambda self: self.readers)
    @rule(index=INDEX)
    def close_reader(self, index: int) -> None:
        self.readers.pop(index % len(self.readers))[0].close()

    @rule(object_id=IDS)
    def delete(self, object_id: str) -> None:
        assert self.store.delete(object_id) == (self.model.pop(object_id, None) is not None)

    @invariant()
    def same_objects(self) -> None:
        assert sorted(self.store) == sorted(self.model)
        for object_id, content in self.model.items():
            info = self.store.stat(object_id)
            assert info is not None
            assert info.size_bytes == len(content)
            assert self.store.get(object_id) == content

    @invariant()
    def readers_keep_what_they_opened(self) -> None:
        for reader, content in self.readers:
            assert reader.read(0, reader.size_bytes) == content

    @invariant()
    def usage_adds_up(self) -> None:
        usage = self.store.usage()
        assert usage.object_count == len(self.model)
        assert usage.used_bytes >= sum(map(len, self.model.values()))
        assert self.writers or not usage.reserved_bytes

    @invariant()
    def store_is_healthy(self) -> None:
        assert self.store.check() == []

    def teardown(self) -> None:
        for reader, _ in self.readers:
            reader.close()
        self.store.close()
