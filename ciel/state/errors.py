"""The errors of key-value bases. Each builds its message from its attributes."""

from __future__ import annotations

from ciel.core.errors import CielError


class KvError(CielError):
    """The root of the errors of key-value bases."""


def show(key: bytes) -> str:
    """Return a key as a message shows it: its first characters, in quotes."""
    text = repr(key.decode(errors="backslashreplace"))
    return text if len(text) <= 82 else f"{text[:80]}…'"


class RefusedError(KvError):
    """A base has carried out no step of a batch, since one step does not allow that."""

    def __init__(self, key: bytes, why: str, step: int = 0) -> None:
        self.key = key
        self.step = step
        super().__init__(f"{show(key)} {why}")


class KeyPresentError(RefusedError):
    """A key that should be inserted is in the base already."""

    def __init__(self, key: bytes, step: int = 0) -> None:
        super().__init__(key, "is in the base already", step)


class KeyMissingError(RefusedError, KeyError):
    """A key that should be updated or deleted is not in the base."""

    def __init__(self, key: bytes, step: int = 0) -> None:
        super().__init__(key, "is not in the base", step)

    def __str__(self) -> str:  # a KeyError shows its argument in quotes
        return str(self.args[0])


class NotANumberError(RefusedError):
    """A value that should be incremented is not an integer of 64 bits, or would not be one."""

    def __init__(self, key: bytes, step: int = 0) -> None:
        super().__init__(
            key, "cannot be incremented: the value or the sum is no integer of 64 bits", step
        )


class ChangedError(RefusedError):
    """A key or a range has changed since it was read."""

    def __init__(self, key: bytes, step: int = 0) -> None:
        super().__init__(key, "has changed meanwhile; `transact` tries again by itself", step)


class KindError(KvError):
    """A key has another kind of content than the operation needs."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(f"the key has a {kind.lower().replace('_', ' ')}, and not what is needed")


class LackingError(KvError):
    """A base does not offer an operation, or not with the guarantee that the caller needs."""

    def __init__(self, base: str, what: str) -> None:
        self.base = base
        self.what = what
        super().__init__(f"{base} cannot {what}")


class LimitError(KvError):
    """A key, a value or a batch is larger than the base accepts."""


class BaseFullError(LimitError):
    """A base is full: it refuses what would make it larger. Reads and deletes go on."""

    def __init__(self, base: str, why: str) -> None:
        self.base = base
        self.why = why
        super().__init__(f"{base} is full: {why}")


class BaseClosedError(KvError):
    """An operation on a base that was closed."""

    def __init__(self, base: str) -> None:
        super().__init__(f"{base} is closed")


class UnreachableError(KvError):
    """A base does not answer. `is_carried_out`: False if the operation was not carried out, None if
    that is unknown.
    """

    def __init__(self, base: str, why: str, is_carried_out: bool | None = None) -> None:
        self.base = base
        self.is_carried_out = is_carried_out
        unknown = "" if is_carried_out is False else "; the operation may have been carried out"
        super().__init__(f"{base} does not answer: {why}{unknown}")


class DeniedError(KvError):
    """A base has refused the password or key, or the role does not permit the operation."""


class ContentError(KvError):
    """A value cannot be stored, or stored bytes cannot be read as a value."""


class LeaseLostError(KvError):
    """A lock or an item of a queue was not renewed in time, so it may belong to another client."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was held longer than its lease, which was not renewed in time")


class NoBaseError(KvError):
    """This process does not know a key-value base."""

    def __init__(self, why: str) -> None:
        super().__init__(f"there is no key-value base here: {why}")


class BaseUrlError(KvError):
    """A URL does not name a base."""


class BaseNameError(KvError):
    """A name is not one of a key-value base."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name[:80]!r} cannot name a key-value base: a name has 1 to 64 letters, digits, and "
            "the signs _ . -"
        )


class StaleRequestError(KvError):
    """The results of a request are forgotten, since its client has made a later one."""

    def __init__(self, number: int, latest: int) -> None:
        self.latest = latest
        super().__init__(f"request {number} comes after request {latest}: its outcome is forgotten")
