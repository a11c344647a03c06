"""Encodes and decodes successions and ballots as JSON values, for HTTP, files and the journal."""

from __future__ import annotations

from typing import Any, Final

from ciel.core.masters import Ballot, Succession
from ciel.wire.errors import DecodeError
from ciel.wire.limits import ID_MAX_LENGTH

MASTERS_MAX: Final = 16
VOTERS_MAX: Final = 100_000
_EPOCH_MAX: Final = 2**53  # the greatest number that each JSON library represents exactly


def succession_to_json(succession: Succession) -> dict[str, Any]:
    """Return the JSON value of a succession."""
    return {
        "epoch": succession.epoch, "number": succession.number, "urls": list(succession.urls),
        "voters": dict(succession.voters),
    }  # fmt: skip


def succession_from_json(value: Any) -> Succession:
    """Check and decode a succession; raises DecodeError."""
    match value:
        case {"epoch": epoch, "number": number, "urls": list(urls), "voters": dict(voters)}:
            pass
        case _:
            raise DecodeError("a succession must have an epoch, a number, urls and voters")
    if not 1 <= len(urls) <= MASTERS_MAX or len(voters) > VOTERS_MAX:
        raise DecodeError("a succession has too many masters or voters, or no master")
    names = [*urls, *voters, *voters.values()]
    if not all(_is_name(name) for name in names):
        raise DecodeError(f"masters and voters must be texts of at most {ID_MAX_LENGTH} characters")
    return Succession(_number(epoch), _number(number), tuple(urls), voters)


def ballot_to_json(ballot: Ballot) -> dict[str, Any]:
    """Return the JSON value of a ballot."""
    return {"epoch": ballot.epoch, "url": ballot.url}


def ballot_from_json(value: Any) -> Ballot:
    """Check and decode a ballot; raises DecodeError."""
    match value:
        case {"epoch": epoch, "url": str(url)} if len(url) <= ID_MAX_LENGTH:
            return Ballot(_number(epoch), url)
    raise DecodeError("a ballot must have an epoch and a url")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= ID_MAX_LENGTH and value.isprintable()


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _EPOCH_MAX:
        raise DecodeError("the numbers of a succession must be whole numbers")
    return value
