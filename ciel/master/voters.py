"""Sends the questions of masters and candidates to the workers that vote, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.web.client import Agent, FileBodyProducer, HTTPConnectionPool, readBody
from twisted.web.http_headers import Headers

from ciel.access.keys import Key
from ciel.access.tickets import make_ticket
from ciel.core.masters import NO_BALLOT, Ballot, Succession
from ciel.master.succession.candidacy import VoterAnswer
from ciel.wire import codec
from ciel.wire.errors import DecodeError
from ciel.wire.masters import ballot_from_json, ballot_to_json, succession_to_json

PATH: Final = "/control/succession"
ANSWER_S: Final = 1.0
"""A voter that does not answer within this time counts as absent."""


class Voters:
    """Asks workers, each by its address; the answer must come from the expected worker."""

    def __init__(self, reactor: Any, key: Key) -> None:
        self._reactor = reactor
        self._key = key
        self._pool = HTTPConnectionPool(reactor, persistent=False)
        self._agent = Agent(reactor, connectTimeout=ANSWER_S, pool=self._pool)

    def name(
        self, voter: str, netloc: str, succession: Succession, done: Callable[[VoterAnswer], object]
    ) -> None:
        """Have a worker store a succession."""
        body = {"do": "name", "succession": succession_to_json(succession)}
        self._ask(voter, netloc, body, done)

    def vote(
        self, voter: str, netloc: str, ballot: Ballot, latest: Succession, *, only_asks: bool,
        done: Callable[[VoterAnswer], object],
    ) -> None:  # fmt: skip
        """Ask whether a worker would vote for a candidate, or request its vote."""
        body = {
            "do": "ask" if only_asks else "vote", "ballot": ballot_to_json(ballot),
            "succession": succession_to_json(latest),
        }  # fmt: skip
        self._ask(voter, netloc, body, done)

    def _ask(
        self, voter: str, netloc: str, body: Any, done: Callable[[VoterAnswer], object]
    ) -> None:
        ticket = make_ticket(self._key, "POST", netloc, PATH, time.time())
        headers = {"Authorization": [ticket], "Content-Type": ["application/json"]}
        content: Any = FileBodyProducer(BytesIO(codec.encode(body)))
        request = self._agent.request(
            b"POST", f"http://{netloc}{PATH}".encode(), Headers(headers), content
        )  # fmt: skip
        answered: Deferred[Any] = request.addCallback(self._read)
        answered.addTimeout(ANSWER_S, self._reactor)
        answered.addCallback(lambda content: _answer(voter, content))
        answered.addErrback(
            lambda failure: VoterAnswer(failure.getErrorMessage(), NO_BALLOT, is_absent=True)
        )
        answered.addCallback(done)

    def _read(self, response: Any) -> Deferred[bytes]:
        body: Deferred[bytes] = readBody(response)
        return body.addCallback(lambda content: _checked(response.code, content))


def _checked(status: int, content: bytes) -> bytes:
    if status != 200:
        raise DecodeError(f"status {status}: {content[:200].decode(errors='replace')}")
    return content


def _answer(voter: str, content: bytes) -> VoterAnswer:
    match codec.decode(content):
        case {
            "voter": str(found),
            "reason": str(reason),
            "promised": promised,
            "hears": str(hears),
        }:
            if found != voter:
                raise DecodeError("another worker has this address now")
            return VoterAnswer(reason, ballot_from_json(promised), hears)
    raise DecodeError("the worker's answer is malformed")
