"""Runs a program for each element of a stream.

Neither the client nor the master holds all elements at a time.

    array = Array(client, job, source, lambda element: job.run(["wc", element]))
    for batch in array.results():
        for element, ref in batch:
            ...

The cluster retains the results of a job that has few elements. If the job has more, the client
releases a result when the caller requests the next one. Failures are retained.
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
"""How many elements may run or wait: one second of work for the largest cluster that one client can
keep busy.
"""
AHEAD_MAX: Final = 100_000
"""How many results that were not yielded yet may be stored here, each with up to 1 KiB."""
KEPT_MAX: Final = 10_000
"""The cluster retains the results of a job with at most this many elements until it is removed."""

_BATCH = 256  # elements that are submitted or released together: one frame of tasks
_YIELDED_MAX = 1024
_LATE_MAX_S = 0.05  # the longest delay of a result
_LATE_S_EACH = 20e-6  # the delay for each outstanding element: polling for each one costs too much


class Source(Protocol[E]):
    """A source of elements."""

    def take(self, count: int) -> list[E]:
        """Return the available elements, at most `count`; does not wait."""

    def is_ready(self) -> bool:
        """Whether elements are available, or the source has ended."""

    @property
    def ended(self) -> bool:
        """Whether all elements were taken."""


class Ending(Protocol):
    """Decides that an array ends before its source."""

    def is_reached(self) -> bool:
        """Whether no more elements are to be submitted; called as results arrive, must not wait."""

    def stop(self) -> None:
        """Called once, after the last element was submitted."""


class Array(Generic[E]):
    """Submits the elements of a source to a job, as fast as the job runs them.

    `run` adds the task of an element. `in_order`: yield results in the order of the elements,
    otherwise as they arrive. `at_once`: how many elements at most are submitted and not settled.
    `keeps`: if false, results are released however few there are. `beside` returns another output
    of an element's task, which the job wants as well. A source calls `Client.wake` when it has
    become ready. `ending`: when to submit no more elements.
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
        ending: Ending | None = None,
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
        """How many objects the job wants for each element."""
        self._ending = ending
        self._closed = False
        self._stopped = False  # by `ending`, perhaps after its last element
        self._ordered: deque[tuple[E, Future]] = deque()  # elements that were not yielded
        self._unordered: dict[ObjectId, E] = {}  # the same, if the order does not matter
        self._arrived: deque[Reference] = deque()  # results of unordered elements
        self._used: list[Reference] = []  # results that were yielded and not released
        self.submitted = 0
        """How many elements were submitted so far."""
        self.handed_over = 0
        """How many results were released."""

    def submit(self) -> None:
        """Submit all elements, and read no results."""
        while not self._closed:
            submitted = self._submit_batch()
            self._job.forget(submitted)
            self._ordered.clear()
            self._unordered.clear()
            if not submitted and not self._closed:
                self._job.wait_until(self._source.is_ready, None, "the next element")

    def results(self) -> Iterator[list[tuple[E, Reference]]]:
        """Submit all elements, and yield lists of elements with their results.

        The result of an element that failed is a `Failure`. Raises what the source raises,
        JobEndedError, RequestRefusedError, ConnectionLostError.
        """
        while True:
            if self._is_to_stop():
                self._stop()
            if room := self._room:
                self._submit_batch(room)
            if batch := self._take_results():
                yield batch
                self._note_used(batch)
            elif self._closed and not self._waiting_count:
                break
            else:
                self._wait()
        self._release()

    # --- elements ---------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Submit no more elements; the job ends when it has the results of those submitted."""
        self._stopped = self._closed = True
        self._job.close()
        if self._ending is not None:
            self._ending.stop()

    def _is_to_stop(self) -> bool:
        return not self._stopped and self._ending is not None and self._ending.is_reached()

    @property
    def _waiting_count(self) -> int:
        return len(self._ordered) + len(self._unordered)

    @property
    def _room(self) -> int:
        """How many elements can be submitted now."""
        if self._closed or self._waiting_count > AHEAD_MAX - _BATCH:
            return 0
        free = self._at_once - (self.submitted - self._job.settled_count // self.wanted_each)
        fewest = _BATCH if self._at_once >= UNSETTLED_MAX else 1  # a batch costs no more
        return min(free, _BATCH) if free >= fewest else 0

    def _submit_batch(self, count: int = _BATCH) -> list[Future]:
        elements = self._source.take(count)
        futures = [self._run(element) for element in elements]
        wanted = futures
        if self._beside is not None:  # with one message, so that the task runs once
            wanted = [ref for future in futures for ref in (future, self._beside(future))]
        if self._in_order:
            self._ordered.extend(zip(elements, futures, strict=True))
            self._job.want(wanted)
        else:
            self._unordered.update((f.id, e) for e, f in zip(elements, futures, strict=True))
            self._job.want(wanted, self._arrived)
        self.submitted += len(futures)
        if self._source.ended:
            self._closed = True
            self._job.close()
        return futures

    # --- results ----------------------------------------------------------------------------------

    def _has_result(self) -> bool:
        if self._in_order:
            return bool(self._ordered) and self._job.settled(self._ordered[0][1]) is not None
        return bool(self._arrived)

    def _take_results(self) -> list[tuple[E, Reference]]:
        batch: list[tuple[E, Reference]] = []
        while len(batch) < _YIELDED_MAX:
            if self._in_order:
                ref = self._job.settled(self._ordered[0][1]) if self._ordered else None
                if ref is None:
                    break
                batch.append((self._ordered.popleft()[0], ref))
            elif self._arrived:
                ref = self._arrived.popleft()
                if ref.id in self._unordered:  # otherwise it was recomputed
                    batch.append((self._unordered.pop(ref.id), ref))
            else:
                break
        return batch

    def _wait(self) -> None:
        """Wait until there is a result, or room for another element."""
        self._client.take_time(min(_LATE_MAX_S, _LATE_S_EACH * self._waiting_count))

        def is_due() -> bool:
            has_room = self._room > 0 and self._source.is_ready()
            return self._has_result() or has_room or self._is_to_stop()

        self._job.wait_until(is_due, None, "the next result")

    def _note_used(self, batch: list[tuple[E, Reference]]) -> None:
        """Note results that the caller has used. In a long job, release them in batches."""
        failed = [ref for _, ref in batch if isinstance(ref, Failure)]
        self._job.forget(failed)
        self._used += [ref for _, ref in batch if not isinstance(ref, Failure)]
        if len(self._used) >= _BATCH:
            self._release()

    def _release(self) -> None:
        if self._used and (not self._keeps or self.submitted > KEPT_MAX):
            self._job.release(self._used, for_good=True)
            self.handed_over += len(self._used)
            self._used = []
