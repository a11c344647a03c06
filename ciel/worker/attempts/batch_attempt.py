"""An attempt whose program runs from its start to its end, with all that it has open."""

from __future__ import annotations

from ciel.core.events import TaskFault
from ciel.core.ids import ObjectId
from ciel.execution.executor import Executor, Task
from ciel.net.turns import DelayedCall
from ciel.storage.interface import Fingerprint, ObjectReader, ObjectStore, ObjectWriter
from ciel.worker.attempts.scratch import Scratch
from ciel.worker.state.orders import Key, StartAttempt
from ciel.worker.streams.growing import Growing, Hold
from ciel.worker.streams.stdin_feeder import Feeder, Piping, Trace


class Hosted:
    """One such attempt; whoever runs it opens and closes."""

    def __init__(self, order: StartAttempt, task: Task, executor: Executor) -> None:
        self.key: Key = (order.spec.id, order.attempt)
        self.order = order
        self.at_most = order.at_most
        self.task = task
        self.executor = executor
        self.argv: list[str] = []
        self.search_path: str | None = None  # where its own environment says so
        self.names: dict[ObjectId, str] = {}  # of inputs that lie in its directory
        self.cwd = ""  # its working directory, if that is not its scratch directory
        self.level = ""  # where its outputs begin
        self.scratch: Scratch | None = None
        self.readers: list[ObjectReader] = []
        self.fingerprints: list[tuple[ObjectReader, Fingerprint]] = []
        self.gone: list[str] = []  # inputs that its program may not have found
        self.pipings: list[Piping] = []
        self.holds: list[Hold] = []
        self.writers: dict[int, ObjectWriter] = {}
        self.streams: dict[int, Growing] = {}
        self.stdout: int | None = None
        self.feeder: Feeder | None = None
        self.trace: Trace | None = None
        self.due: DelayedCall | None = None  # its start, if that is to wait
        self.launch_id: int | None = None
        self.logged_bytes = 0  # how much of what it complained is in its job's log
        self.killed: TaskFault | None = None  # why its program was
        self.exit_status: int | None = None  # see `nodes.Ending`
        self.is_called_off = False  # signals that its program got were ours

    @property
    def unread(self) -> str:
        """Why its program may have taken a part of an input, or nothing, for all of it; empty if it
        has not.
        """
        feeders = self.pipings if self.feeder is None else [self.feeder, *self.pipings]
        error = next((feeder.error for feeder in feeders if feeder.error is not None), None)
        if error is not None:
            return f"an input of it could not be read to the end: {error}"
        return f"its input {', '.join(self.gone)} was deleted while it ran" if self.gone else ""

    @property
    def may_lack_output(self) -> bool:
        """Whether its program may have been refused room for what it wrote."""
        return any(writer.may_be_short for writer in self.writers.values())

    def drop_changed(self, store: ObjectStore) -> list[str]:
        """Delete the inputs that were changed since the program started; return their names. Those
        of inputs that somebody deleted meanwhile are in `gone`.
        """
        changed = []
        for reader, was in self.fingerprints:
            name = self.names.get(ObjectId(reader.object_id), reader.object_id)
            found = reader.fingerprint()
            assert found is not None  # as before
            if found != was:
                changed.append(name)
                if found.is_named:
                    store.delete(reader.object_id)
            elif not found.is_named:
                self.gone.append(name)
        return changed

    def close_inputs(self) -> None:
        if self.due is not None and self.due.active():
            self.due.cancel()
        if self.feeder is not None:
            self.feeder.close()
        for piping in self.pipings:
            piping.close()
        for hold in self.holds:
            hold.close()
        for reader in self.readers:
            reader.close()
        self.readers.clear()
        self.fingerprints.clear()
