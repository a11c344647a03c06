"""Fetches URLs into a worker's store, in fetch sessions that clients request over HTTP.

A fetch session is a list of URLs under a name that the client chooses. The client polls it until
all URLs are fetched or have failed. It has nothing to do with a session of control messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import DeferredSemaphore, inlineCallbacks
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from ciel.core.errors import CielError
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Fetch
from ciel.net.errors import NetError
from ciel.net.transfers import Transfers
from ciel.net.url_policy import UrlPolicy, UrlRefusedError
from ciel.storage.interface import ObjectStore
from ciel.wire.references import to_json

log = Logger()

SESSIONS_MAX: Final = 1000
REFS_MAX: Final = 1000
AT_A_TIME: Final = 8


class FetchRefusedError(CielError):
    """A fetch session cannot be started. `status`: the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class FetchSession:
    """The URLs of a fetch session, and the objects fetched so far."""

    def __init__(self, refs: Sequence[Fetch]) -> None:
        self.refs = refs
        self.fetched: list[Concrete] = []
        self.failed: list[tuple[Fetch, str]] = []

    @property
    def state(self) -> str:
        if len(self.fetched) + len(self.failed) < len(self.refs):
            return "running"
        return "failed" if self.failed else "done"


class UrlFetching:
    """All fetch sessions of a worker. `keep` pins each fetched object."""

    def __init__(
        self,
        reactor: Any,
        store: ObjectStore,
        url_policy: UrlPolicy,
        netloc: str,
        keep: Callable[[ObjectId], None],
    ) -> None:
        self._netloc = netloc
        self._store = store
        self._policy = url_policy
        self._keep = keep
        self._transfers = Transfers(reactor, concurrent_max=AT_A_TIME, url_policy=url_policy)
        self._semaphore = DeferredSemaphore(AT_A_TIME)
        self._sessions: dict[str, FetchSession] = {}
        self._is_closed = False

    def start(self, name: str, refs: Sequence[Fetch]) -> FetchSession:
        """Start a fetch session; raises FetchRefusedError before it fetches anything."""
        if self._policy is UrlPolicy.OFF:
            raise FetchRefusedError(
                403,
                "this worker fetches no URLs: start it with --fetch-urls https, or have a `grab` "
                "task fetch them",
            )
        if name in self._sessions:
            raise FetchRefusedError(
                409, f"the fetch session {name} exists already; choose another name"
            )
        if len(refs) > REFS_MAX:
            raise FetchRefusedError(
                413, f"a fetch session may have at most {REFS_MAX} URLs; start several"
            )
        for ref in refs:
            try:
                self._policy.check(ref.url)
            except UrlRefusedError as error:
                raise FetchRefusedError(400, str(error)) from None
        self._make_room()
        session = self._sessions[name] = FetchSession(refs)
        for ref in refs:
            done = self._semaphore.run(self._fetch, ref)
            done.addCallbacks(session.fetched.append, self._failed, errbackArgs=(session, ref))
        return session

    def _make_room(self) -> None:
        """Forget the oldest completed fetch session, if there are too many."""
        if len(self._sessions) < SESSIONS_MAX:
            return
        for name, session in self._sessions.items():
            if session.state != "running":
                del self._sessions[name]
                return
        raise FetchRefusedError(
            503,
            f"this worker runs {SESSIONS_MAX} fetch sessions, the most that it can; try again when "
            "one has ended",
        )

    @inlineCallbacks
    def _fetch(self, ref: Fetch) -> Any:
        if self._is_closed:
            raise UrlRefusedError(ref.url, "this worker is shutting down")
        info = self._store.stat(ref.id)
        if info is None:
            with self._store.begin(ref.id) as writer:
                yield self._transfers.fetch(ref.url, writer)
                info = yield deferToThread(writer.commit)
        self._keep(ref.id)
        return Concrete(ref.id, info.size_bytes, frozenset((self._netloc,)))

    def _failed(self, failure: Any, session: FetchSession, ref: Fetch) -> None:
        if not isinstance(failure.value, NetError | CielError):
            log.failure("{url} could not be fetched", failure, url=ref.url)
        session.failed.append((ref, failure.getErrorMessage() or type(failure.value).__name__))

    def facts(self, name: str) -> dict[str, Any] | None:
        """Describe a fetch session; None if it does not exist."""
        session = self._sessions.get(name)
        if session is None:
            return None
        return {
            **self._row(name, session),
            "refs": [to_json(ref) for ref in session.fetched],
            "failures": [
                {"id": ref.id, "url": ref.url, "error": why} for ref, why in session.failed
            ],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Describe all fetch sessions briefly."""
        return [self._row(name, session) for name, session in self._sessions.items()]

    def _row(self, name: str, session: FetchSession) -> dict[str, Any]:
        return {
            "session": name,
            "state": session.state,
            "urls": len(session.refs),
            "fetched": len(session.fetched),
            "failed": len(session.failed),
        }

    def close(self) -> None:
        """End all fetches."""
        self._is_closed = True
        self._transfers.close()
