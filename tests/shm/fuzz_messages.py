"""Coverage-guided fuzzing of what a daemon is sent: run it by hand, with libFuzzer's options.

    pip install atheris && python tests/shm/fuzz_messages.py -max_total_time=600

Whatever the bytes and however they are cut, a decoder returns messages that are encoded to the same
bytes again, or raises MessageError; and what a daemon makes of them ends in answers.
"""

import sys
from typing import Any

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # installed by hand

with atheris.instrument_imports():
    from ciel.shm.errors import MessageError
    from ciel.shm.messages import Commit, Decoder, Load, Write, encode
    from ciel.shm.requests import Answer, Requests


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
    asked = [message for message in messages if isinstance(message, Load | Write | Commit)]
    for message in asked:
        requests.asked("fuzzer", message, 0.0)
    requests.tick(1e9)
    answers = [order for order in requests.take_orders() if isinstance(order, Answer)]
    assert len(answers) == len(asked)
    for answer in answers:
        encode(answer.message)


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz_one_input)
    atheris.Fuzz()
