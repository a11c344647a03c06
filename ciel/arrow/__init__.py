"""Tables of Apache Arrow in the store: made in place by one task, read in place by all others.

It needs pyarrow and numpy, which `pip install 'ciel[arrays]'` installs.
"""

from ciel.arrow.concat import Concat, SchemasDifferError, concat
from ciel.arrow.drafts import Draft, empty
from ciel.arrow.formats import FormatError, as_file
from ciel.arrow.pool import in_store, memory_pool
from ciel.arrow.states import SharedTaskError, StateError, States, StateTimeoutError

__all__ = [
    "Concat", "Draft", "FormatError", "SchemasDifferError", "SharedTaskError", "StateError",
    "StateTimeoutError", "States", "as_file", "concat", "empty", "in_store", "memory_pool",
]  # fmt: skip
