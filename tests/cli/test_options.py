import pytest

from ciel.cli.outcome import UsageError
from ciel.cli.parsing.options import assignments


def test_variables_are_set_or_taken_from_ours() -> None:
    assert assignments("-E", ["A=1", "B=x=y", "C="], {}) == {"A": "1", "B": "x=y", "C": ""}
    assert assignments("-E", ["HOME"], {"HOME": "/h"}) == {"HOME": "/h"}
    for wrong in ("=x", "NO", "\udcff=a"):
        with pytest.raises(UsageError, match="-E"):
            assignments("-E", [wrong], {})
