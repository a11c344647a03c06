"""Values, contents, calls and failures as bytes."""

import pickle
import sys
import threading
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from ciel.core.ids import ObjectId
from ciel.core.refs import Failure
from ciel.python import calls, contents, failures, packing
from ciel.python.futures import Future

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


class Stand(Future[Any]):
    """A future, as far as packing is concerned."""


def joined(pieces: list[Any]) -> bytearray:
    return bytearray(b"".join(bytes(memoryview(piece)) for piece in pieces))


@given(PLAIN)
def test_a_value_comes_back(value: Any) -> None:
    head, buffers = packing.pack(value)
    assert packing.unpack(head, buffers) == value


def test_an_array_is_not_copied_into_its_pickle() -> None:
    array = np.arange(100_000)
    packed = packing.pack([array])
    assert len(packed.head) < 1000
    assert np.shares_memory(packing.unpack(*packed)[0], array)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_large_bytes_are_not_copied_into_their_pickle(kind: Any) -> None:
    value = kind(bytes(100_000))
    packed = packing.pack([{"in": (value, lambda: value)}, value])
    assert len(packed.head) < 2000
    found = packing.unpack(*packed)
    assert found[1] == value
    assert type(found[1]) is kind
    assert found[0]["in"][0] is found[1]
    assert found[0]["in"][1]() is found[1]


def test_a_memoryview_keeps_its_shape_and_whether_it_may_be_written_to() -> None:
    view = memoryview(bytearray(96)).cast("B").cast("d", (3, 4))
    view[1, 2] = 0.5
    for sent in (view, view.toreadonly()):
        found = packing.unpack(*packing.pack(sent))
        assert (found.tolist(), found.readonly) == (view.tolist(), sent.readonly)
    assert packing.unpack(*packing.pack(memoryview(b""))) == b""


def test_futures_at_any_depth_are_noted_and_replaced() -> None:
    one, other = Stand(), Stand()
    packed, found = packing.pack_with_futures(([one, {"x": (other, one)}], {}))
    assert found == [one, other] or found == [one, other, one]
    value = packing.unpack(packed.head, packed.buffers, [f"value of {id(f)}" for f in found])
    assert value == (
        [f"value of {id(one)}", {"x": (f"value of {id(other)}", f"value of {id(one)}")}],
        {},
    )


def test_a_future_has_no_bytes_outside_of_arguments_and_results() -> None:
    with pytest.raises(packing.UnpackedError, match="pass it to a task as an argument"):
        packing.pack([Stand()])


def test_futures_are_noted_once_though_the_value_needs_code() -> None:
    future = Stand()
    packed, found = packing.pack_with_futures([future, lambda: 1])
    assert found == [future]
    value, function = packing.unpack(packed.head, packed.buffers, ["there"])
    assert (value, function()) == ("there", 1)


def test_what_has_no_bytes_is_named_with_where_it_stands() -> None:
    with pytest.raises(
        packing.UnpackedError, match=r"\['lock'\]\[1\] _thread.lock cannot be pickled"
    ):
        packing.pack({"lock": [1, threading.Lock()]})


def test_what_a_function_closes_over_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(packing.UnpackedError, match=r"lock _thread\.lock cannot be pickled"):
        packing.pack(lambda: lock)


def test_what_contains_itself_too_deeply_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(packing.UnpackedError, match="nested too deeply"):
        packing.pack(value)


@pytest.mark.slow
@given(st.lists(st.tuples(PLAIN, st.lists(st.binary(max_size=300), max_size=3)), max_size=5))
def test_outcomes_come_back_with_their_buffers_aligned(values: list[Any]) -> None:
    outcomes = [
        contents.Outcome(contents.VALUE, packing.Packed(pickle.dumps(value), tuple(buffers)))
        for value, buffers in values
    ]
    content = joined(contents.encode(outcomes, 0.25))
    found = contents.decode(content)
    assert found.took_s == 0.25
    for outcome, (value, buffers) in zip(found.outcomes, values, strict=True):
        assert pickle.loads(outcome.packed.head) == value
        assert [bytes(buffer) for buffer in outcome.packed.buffers] == buffers


def test_buffers_begin_where_vector_units_like_them() -> None:
    packed = packing.pack([np.arange(3), np.arange(5)])
    content = memoryview(joined(contents.encode([contents.Outcome(contents.VALUE, packed)])))
    whole = np.frombuffer(content, np.uint8)
    for buffer in contents.decode(content).outcomes[0].packed.buffers:
        start = np.frombuffer(buffer, np.uint8)  # type: ignore[arg-type]  # any buffer
        assert (start.ctypes.data - whole.ctypes.data) % contents.ALIGNMENT_BYTES == 0


@pytest.mark.parametrize(
    "content", [b"", b"x" * 23, b"x" * 100, contents.HEADER.pack(b"ciel.py1", 9, 9)]
)
def test_what_no_task_made_is_no_content(content: bytes) -> None:
    with pytest.raises(packing.UnpackedError, match=f"{len(content)} bytes. is not in the format"):
        contents.decode(content)


def test_a_stream_comes_back_and_one_without_an_end_is_refused() -> None:
    frames = [
        contents.stream_frame(contents.ITEM, b"one"),
        contents.stream_frame(contents.RETURNED, b""),
    ]
    whole = contents.STREAM_MAGIC + b"".join(frames)
    assert list(contents.read_stream(_reader(whole))) == [
        (contents.ITEM, b"one"),
        (contents.RETURNED, b""),
    ]
    for end in range(len(whole)):
        with pytest.raises(packing.UnpackedError):
            list(contents.read_stream(_reader(whole[:end])))


def _reader(content: bytes) -> Any:
    import io

    return io.BytesIO(content).read


def _bundle(version: tuple[int, int, str] = calls.VERSION) -> calls.Bundle:
    packed = packing.pack(((1, 2), {}))
    call = calls.Call(0, packed, (calls.Use(0, 0, 1, False, calls.AS_VALUE),), name="f", returns=2)
    function = calls.function_of(b"function")
    return calls.Bundle(version, ("/x",), (function,), ((call,), (call, call)), raw=True)


def test_a_bundle_comes_back() -> None:
    bundle = _bundle()
    assert calls.unpack_bundle(calls.pack_bundle(bundle)) == bundle
    arguments = calls.arguments_of(calls.pack_bundle(bundle), ["ref"], "/usr/bin/python3")
    assert calls.bundle_in(arguments) == bundle
    assert arguments["inputs"] == ["ref"]
    assert arguments["python"] == "/usr/bin/python3"


def test_calls_of_another_version_are_refused_in_one_line() -> None:
    other = (3, 99, "0.0.1")
    with pytest.raises(packing.UnpackedError) as caught:
        calls.unpack_bundle(calls.pack_bundle(_bundle(other)))
    text = str(caught.value)
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    assert "Python 3.99 with ciel 0.0.1" in text
    assert here in text
    assert "\n" not in text


class WithNoBytes(Exception):
    def __init__(self, one: int, other: int) -> None:
        super().__init__("both")
        self.lock = threading.Lock()


class ApiError(Exception):
    """Has given `Exception` less than it takes itself."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class DoubledError(Exception):
    """Can be rebuilt from its `args`, but then has another text."""

    def __init__(self, code: int, message: str = "no") -> None:
        super().__init__(f"{code}: {message}")


class NamedError(OSError):
    def __init__(self, *, path: str) -> None:
        super().__init__(2, "not here", path)


class ChosenError(Exception):
    """Takes other arguments also where it is allocated."""

    def __new__(cls, *, code: int) -> "ChosenError":
        return super().__new__(cls, code)

    def __init__(self, *, code: int) -> None:
        self.code = code
        self.itself = self


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class BoundError(Exception):
    """Says itself how it is to be packed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.made_of = (code, reason)

    def __reduce__(self) -> Any:
        return BoundError, self.made_of


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_exception_keeps_its_class_arguments_and_notes_and_brings_its_traceback() -> None:
    error = _raised(ValueError("bad", 7))
    error.add_note("at night")
    found = failures.unpack_error(failures.pack_error(error), "task 3 on worker w, attempt 1")
    assert type(found) is ValueError
    assert found.args == ("bad", 7)
    assert found.__notes__ == ["at night", "task 3 on worker w, attempt 1"]
    assert "in _raised" in str(found.__cause__)


@pytest.mark.parametrize(
    "error",
    [
        ApiError(7, "no"),
        DoubledError(7),
        NamedError(path="/nowhere"),
        ChosenError(code=7),
        FrozenError(7),
        FrozenError(code=7),
        BoundError(7, "no"),
    ],
    ids=repr,
)
def test_an_exception_whose_class_takes_other_arguments_than_its_own_is_rebuilt(
    error: Any,
) -> None:
    found: Any = failures.unpack_error(failures.pack_error(_raised(error)), "task 3")
    assert type(found) is type(error)
    assert (str(found), found.args) == (str(error), error.args)
    assert vars(found).keys() - vars(error).keys() == {"__notes__"}
    assert getattr(found, "filename", None) == getattr(error, "filename", None)
    assert getattr(found, "itself", found) is found
    assert found.__notes__ == ["task 3"]
    assert "in _raised" in str(found.__cause__)


def test_exceptions_within_a_group_are_rebuilt_too() -> None:
    error = ExceptionGroup("both", [ApiError(7, "no"), KeyError("k")])
    error.exceptions[0].add_note("the first")
    found = failures.unpack_error(failures.pack_error(_raised(error)))
    assert type(found) is ExceptionGroup
    assert repr(found.exceptions) == repr(error.exceptions)
    assert found.exceptions[0].__notes__ == ["the first"]


def test_an_exception_that_has_its_own_way_to_be_packed_keeps_it() -> None:
    error = BoundError(7, "no")
    error.made_of = (8, "perhaps")
    found = failures.unpack_error(failures.pack_error(_raised(error)))
    assert str(found) == "8: perhaps"


def test_an_exception_that_cannot_travel_is_named() -> None:
    found = failures.unpack_error(failures.pack_error(_raised(WithNoBytes(1, 2))))
    assert isinstance(found, failures.RemoteError)
    assert found.kind.endswith("WithNoBytes")
    assert "WithNoBytes" in str(found)
    assert "both" in str(found)


def test_local_variables_are_shown_on_request_only() -> None:
    def fail() -> None:
        secret = "the answer is 42"
        raise KeyError(len(secret))

    for wanted in (False, True):
        with pytest.raises(KeyError) as caught:
            fail()
        text = failures.error_text(failures.pack_error(caught.value, locals_wanted=wanted))
        assert ("the answer is 42'" in text) is wanted


@pytest.mark.parametrize(
    "reason, kind",
    [
        ("MEMORY_LIMIT", failures.TaskMemoryError),
        ("TIMED_OUT", failures.TaskTimeoutError),
        ("CANCELLED", failures.TaskCancelledError),
        ("OBJECT_LOST", failures.TaskLostError),
        ("WORKER_FAILED", failures.TaskLostError),
        ("RUNTIME_EXCEPTION", failures.TaskKilledError),
        ("NO_EXECUTOR", failures.TaskError),
    ],
)
def test_each_way_to_end_has_its_class(reason: str, kind: type[BaseException]) -> None:
    error = failures.error_of(Failure(ObjectId("x"), reason, "what happened"))
    assert type(error) is kind
    assert str(error) == "what happened"
    dependant = Failure(
        ObjectId("y"), *Failure(ObjectId("x"), reason, "what happened").propagated()
    )
    assert type(failures.error_of(dependant)) is kind


def test_what_a_function_raised_reaches_those_who_depend_on_it() -> None:
    details = failures.failure_details(failures.pack_error(_raised(LookupError("gone"))))
    failure = Failure(ObjectId("x"), failures.RAISED, details)
    assert isinstance(failures.error_of(failure), LookupError)
    dependant = Failure(ObjectId("y"), *failure.propagated())
    assert isinstance(failures.error_of(dependant), LookupError)
