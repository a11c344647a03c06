"""The errors of `ciel-kv` that concern one command or one connection."""

from __future__ import annotations

from ciel.state.errors import KvError


class FramingError(KvError):
    """A client does not speak the protocol."""


class CommandError(KvError):
    """A command cannot be carried out, and has changed nothing. `code`: the first word of the error
    that the client gets.
    """

    def __init__(self, text: str, code: str = "ERR") -> None:
        self.code = code
        super().__init__(text)
