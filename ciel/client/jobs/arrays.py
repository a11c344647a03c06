"""An array of programs, seen from the client: elements go in as a stream, what became of them comes
out, and neither we nor the master hold all of them.

    array = Array(client, job, source, lambda element: job.run(["wc", element]))
    for batch in array.results():
        for element, ref in batch:
            ...

A job of few elements keeps its results in the cluster. One that turns out to have more hands them
over: what was yielded, and then asked past, is forgotten there. Failures are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ciel.core.ids import ObjectId
from ciel.core.refs import Failure, Future, Reference

if TYPE_CHECKING:
    from ciel.client.jobs.client import JobClient
    from ciel.client.jobs.job import Job

E = TypeVar("E")

UNSETTLED_MAX: Final = 10_000
"""Elements that run or wait: a second's work for any cluster that one client can feed."""
AHEAD_MAX: Final = 100_000
"""Elements whose results are not used yet; they wait for their turn, with up to 1 KiB each."""
KEPT_MAX: Final = 10_000
"""A job of so many elements keeps their results until it is removed."""

_BATCH = 256  # elements that are submitted, or released, at once: a frame of tasks
_YIELDED_MAX = 1024
_LATE_MAX_S = 0.05  # so much later than it could be a result is used,
_LATE_S_EACH = 20e-6  # for each that is outstanding: with many, looking for each costs too much


class Source(Protocol[E]):
    """Where elements come from."""

    def take(self, count: int) -> list[E]:
        """Return the next elements, at most `count` of them and only those there are; never
        waits.
        """

    def is_ready(self) -> bool:
        """Whether there is something to take, if only the news that there will be no more."""

    @property
    def ended(self) -> bool:
        """Whether all were taken."""


class Array(Generic[E]):
    """Feeds a job from a source, as fast as it is worked off. `run` adds the task of an element.

    `in_order`: results are yielded in the order of the elements, else as they come. `at_once`: no
    more elements than that are submitted and not settled. `keeps`: unless it is true, results are
    handed over however few they are. `beside`: returns another output of an element's task, which
    is wanted as well. A source for which somebody has to be woken calls `Client.wake`.
    """

    def __init__(
        self,
        client: JobClient,
        job: Job,
        source: Source[E],
        run: Callable[[E], Future],
        *,
        in_order: bool = True,
        at_once: int = UNSETTLED_MAX,
        keeps: bool = True,
        beside: Callable[[Future], Future] | None = None,
    ) -> None:
        self._client = client
        self._job = job
        self._source = source
        self._run = run
        self._in_order = in_order
        self._at_once = min(at_once, UNSETTLED_MAX)
        self._keeps = keeps
        self._beside = beside
        self.wanted_each = 1 if beside is None else 2
        """How many objects of each element are wanted."""
        self._closed = False
        self._line: deque[tuple[E, Future]] = deque()  # not yielded yet, in order
        self._crowd: dict[ObjectId, E] = {}  # the same where order does not matter
        self._arrived: deque[Reference] = deque()  # what became of some of the crowd
        self._used: list[Reference] = []  # yielded, and not released yet
        self.submitted = 0
        """How many elements were submitted so far."""
        self.handed_over = 0
        """How many results the cluster was told to forget."""

    def submit(self) -> None:
        """Submit all elements, and leave the results to others."""
        while not self._closed:
            submitted = self._submit_batch()
            self._job.forget(submitted)
            self._line.clear()
            self._crowd.clear()
            if not submitted and not self._closed:
                self._job.wait_until(self._source.is_ready, None, "the next element")

    def results(self) -> Iterator[list[tuple[E, Reference]]]:
        """Submit all elements, and yield them with what they became, some at a time.

        One that failed comes with a `Failure`. Raises what the source does, JobEndedError,
        RequestRefusedError, ConnectionLostError.
        """
        while True:
            if room := self._room:
                self._submit_batch(room)
            if batch := self._take_results():
                yield batch
                self._use(batch)
            elif self._closed and not self._waiting_count:
                break
            else:
                self._wait()
        self._hand_over()

    # --- in ---------------------------------------------------------------------------------------

    @property
    def _waiting_count(self) -> int:
        return len(self._line) + len(self._crowd)

    @property
    def _room(self) -> int:
        """How many elements may be submitted now."""
        if self._closed or self._waiting_count > AHEAD_MAX - _BATCH:
            return 0
        free = self._at_once - (self.submitted - self._job.settled_count // self.wanted_each)
        fewest = _BATCH if self._at_once >= UNSETTLED_MAX else 1  # a batch costs as much as one
        return min(free, _BATCH) if free >= fewest else 0

    def _submit_batch(self, count: int = _BATCH) -> list[Future]:
        elements = self._source.take(count)
        futures = [self._run(element) for element in elements]
        wanted = futures
        if self._beside is not None:  # together: a task runs once for all that is wanted of it
            wanted = [ref for future in futures for ref in (future, self._beside(future))]
        if self._in_order:
            self._line.extend(zip(elements, futures, strict=True))
            self._job.want(wanted)
        else:
            self._crowd.update((f.id, e) for e, f in zip(elements, futures, strict=True))
            self._job.want(wanted, self._arrived)
        self.submitted += len(futures)
        if self._source.ended:
            self._closed = True
            self._job.close()
        return futures

    # --- out --------------------------------------------------------------------------------------

    def _has_result(self) -> bool:
        if self._in_order:
            return bool(self._line) and self._job.settled(self._line[0][1]) is not None
        return bool(self._arrived)

    def _take_results(self) -> list[tuple[E, Reference]]:
        batch: list[tuple[E, Reference]] = []
        while len(batch) < _YIELDED_MAX:
            if self._in_order:
                ref = self._job.settled(self._line[0][1]) if self._line else None
                if ref is None:
                    break
                batch.append((self._line.popleft()[0], ref))
            elif self._arrived:
                ref = self._arrived.popleft()
                if ref.id in self._crowd:  # else it was made again
                    batch.append((self._crowd.pop(ref.id), ref))
            else:
                break
        return batch

    def _wait(self) -> None:
        """Wait until there is something to do."""
        self._client.take_time(min(_LATE_MAX_S, _LATE_S_EACH * self._waiting_count))

        def is_due() -> bool:
            return self._has_result() or (self._room > 0 and self._source.is_ready())

        self._job.wait_until(is_due, None, "the next result")

    def _use(self, batch: list[tuple[E, Reference]]) -> None:
        """Take note that results were used: those of a long job may go."""
        failed = [ref for _, ref in batch if isinstance(ref, Failure)]
        self._job.forget(failed)
        self._used += [ref for _, ref in batch if not isinstance(ref, Failure)]
        if len(self._used) >= _BATCH:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._used and (not self._keeps or self.submitted > KEPT_MAX):
            self._job.release(self._used, for_good=True)
            self.handed_over += len(self._used)
            self._used = []
