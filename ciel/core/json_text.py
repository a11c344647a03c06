"""JSON out of values, by the encoder of the standard library, made once.

`json.dumps` makes its encoder anew for every call, which for what is small takes several times as
long as the encoding. What refers to itself ends in a RecursionError.
"""

from __future__ import annotations

from collections.abc import Callable
from json import JSONEncoder, encoder
from typing import Any


def make_encoder(
    refuse: Callable[[Any], Any], *, ascii_only: bool, sort_keys: bool
) -> Callable[[Any], str]:
    """Return what encodes a value compactly; `refuse` is called for what has no JSON form, and
    raises. NaN and infinities raise ValueError.
    """
    in_c = getattr(encoder, "c_make_encoder", None)
    if in_c is None:  # an interpreter without it
        return JSONEncoder(
            check_circular=False, allow_nan=False, ensure_ascii=ascii_only, sort_keys=sort_keys,
            separators=(",", ":"), default=refuse,
        ).encode  # fmt: skip
    quote = encoder.encode_basestring_ascii if ascii_only else encoder.encode_basestring
    pieces = in_c(None, refuse, quote, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(pieces(value, 0))
