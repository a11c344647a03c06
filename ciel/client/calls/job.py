"""Manages the one job whose tasks run all calls of a client."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ciel.client.calls.lots import Lots
from ciel.client.calls.session import CallJob, OpenJob, Session
from ciel.client.data.uploads import REPLICAS
from ciel.client.errors import ClientError, JobEndedError, RequestRefusedError
from ciel.client.jobs.caller_context import Caller
from ciel.core.refs import INLINE_MAX_BYTES, Reference, locations_of
from ciel.python.contents import Outcome, encode

RELEASED_AT_ONCE: Final = 256
RELEASED_AFTER_S: Final = 0.5
"""Fewer than RELEASED_AT_ONCE dropped objects are released with the next call, or when a message of
the master arrives at least this long after the last release. The master sends a message each
second."""


class JobOfCalls:
    """The job of a client's calls. Thread-safe.

    It is opened with the first call. This class wants the objects that calls produce, and releases
    the objects that the program drops.
    """

    def __init__(
        self, session: Session, find_caller: Callable[[], Caller], open_job: OpenJob, lots: Lots
    ) -> None:
        self.to_want: deque[Reference] = deque()
        """Objects that the next `want_all` wants."""
        self.settled: deque[Reference] = deque()
        """References to objects that were produced or have failed; the connection's thread appends
        to it."""
        self.caller: Caller
        """The directory and environment of the calls; set when the job is opened."""
        self._session = session
        self._find_caller = find_caller
        self._open_job = open_job
        self._lots = lots
        self._opened: CallJob | None = None
        self._released_s = 0.0

    def open(self) -> CallJob:
        """Return the job; open it if this is the first call. Raises ClientError."""
        if self._opened is None:
            self.caller = self._find_caller()
            self._opened = self._open_job(self.caller.context)
        return self._opened

    @property
    def opened(self) -> CallJob | None:
        """The job; None before the first call."""
        return self._opened

    @property
    def end(self) -> ClientError | None:
        """Why the job produces no more results; None while it does."""
        job = self._opened
        if job is None:
            return None
        if job.refusal:
            return RequestRefusedError(job.id, job.refusal)
        if job.has_ended and (summary := job.summary) is not None:
            return JobEndedError(summary.number, summary.state, summary.reason)
        return None

    def want_all(self) -> None:
        """Want the objects in `to_want`.

        Some may be left from a thread that was interrupted before it wanted them.
        """
        if refs := list(self.to_want):
            self.open().want(refs, self.settled)
            for ref in refs:
                with contextlib.suppress(ValueError):  # another thread has removed it
                    self.to_want.remove(ref)

    @property
    def must_release(self) -> bool:
        """Whether dropped objects should be released now, although no call is sent."""
        if not self._lots.dropped:
            return False
        is_due = time.monotonic() - self._released_s >= RELEASED_AFTER_S
        return is_due or len(self._lots.dropped) >= RELEASED_AT_ONCE

    def release_dropped(self) -> None:
        """Release the objects that the program has dropped."""
        if self._lots.dropped:
            self._released_s = time.monotonic()
            refs = self._lots.take_dropped()
            if self._opened is not None or any(map(locations_of, refs)):
                self.open().release(refs, for_good=True)

    def store(self, outcomes: list[Outcome], name: str, copies: int | None = None) -> Reference:
        """Store outcomes as an object; raises UploadError, which contains `name`.

        `copies`: workers maintain so many copies of it; None: the default number, once.
        """
        pieces = encode(outcomes)
        size_bytes = sum(memoryview(piece).nbytes for piece in pieces)
        if size_bytes <= INLINE_MAX_BYTES:
            return self._session.upload_content(b"".join(pieces), name)
        ref = self._session.upload_pieces(pieces, name, copies or REPLICAS)
        if copies is not None and copies > 1:
            self.open().replicate((ref,), copies)
        return ref

    def close(self) -> None:
        """Notify the master that no more tasks follow."""
        if self._opened is not None and not self._opened.has_ended:
            with contextlib.suppress(ClientError):  # the job has ended already
                self._opened.close()
