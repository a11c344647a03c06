"""Coverage-guided fuzzing of what a daemon is sent: run it by hand, with libFuzzer's options.

    pip install atheris && mkdir found
    python tests/shm/fuzz_messages.py found -max_total_time=600

A decoder must return messages that it encodes to the same bytes again, or raise MessageError, for
any bytes in pieces of any size. A daemon must answer every request among these messages.
"""

import os
import sys
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # installed by hand

os.environ["CIEL_PURE"] = "1"  # a fuzzer gets no coverage from compiled code
import ciel.pure  # noqa: F401  # what finds sources, before what instruments them

with atheris.instrument_imports():
    from ciel.shm.errors import MessageError
    from ciel.shm.messages import (
        Abandon,
        Code,
        Commit,
        Decoder,
        Fail,
        Load,
        Message,
        Ok,
        Request,
        Write,
        encode,
    )
    from ciel.shm.requests import Answer, Requests


EXAMPLES: tuple[Message, ...] = (
    Load(1, "a:out:0", True, True, 9),
    Write(2, "a:out:0", "first", 4096, 9, True),
    Commit(3, "/dev/shm/a", "a:out:0", 9),
    Ok(4, "/dev/shm/a", 4096, "sha256:0"),
    Fail(5, Code.BUSY, "a:out:0", "later"),
    Abandon(6, "/dev/shm/a", 9),
)
"""The first inputs of the fuzzer, one of each kind: it would take long to find them."""


def fuzz_one_input(raw: bytes) -> None:
    source = atheris.FuzzedDataProvider(raw)
    cut = source.ConsumeIntInRange(0, 64)
    stream = source.ConsumeBytes(len(raw))
    decoder, requests = Decoder(), Requests()
    messages: list[Any] = []
    try:
        for chunk in (stream[:cut], stream[cut:]):
            messages += decoder.feed(chunk)
    except MessageError:
        pass
    again = b"".join(encode(message) for message in messages)
    assert stream.startswith(again)
    asked = [message for message in messages if isinstance(message, Request)]
    for message in asked:
        requests.asked("fuzzer", message, 0.0)
    requests.tick(1e9)
    answers = [order for order in requests.take_orders() if isinstance(order, Answer)]
    assert len(answers) == len(asked)
    for answer in answers:
        encode(answer.message)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    for number, example in enumerate(EXAMPLES):
        Path(sys.argv[1], str(number)).write_bytes(encode(example) * 2 + b"\0")
    atheris.Setup(sys.argv, fuzz_one_input)
    atheris.Fuzz()
