"""Encodes values as JSON with a reusable encoder of the standard library.

`json.dumps` creates an encoder for every call, which for small values takes several times as long
as the encoding itself. A value that contains itself raises RecursionError.
"""

from __future__ import annotations

from collections.abc import Callable
from json import JSONEncoder, encoder
from typing import Any


def make_encoder(
    refuse: Callable[[Any], Any], *, ascii_only: bool, sort_keys: bool
) -> Callable[[Any], str]:
    """Return a function that encodes a value compactly.

    It calls `refuse`, which raises, for values without a JSON form. NaN and infinities raise
    ValueError.
    """
    in_c = getattr(encoder, "c_make_encoder", None)
    if in_c is None:  # this interpreter has no encoder in C
        return JSONEncoder(
            check_circular=False, allow_nan=False, ensure_ascii=ascii_only, sort_keys=sort_keys,
            separators=(",", ":"), default=refuse,
        ).encode  # fmt: skip
    quote = encoder.encode_basestring_ascii if ascii_only else encoder.encode_basestring
    pieces = in_c(None, refuse, quote, None, ":", ",", sort_keys, False, False)
    return lambda value: "".join(pieces(value, 0))
