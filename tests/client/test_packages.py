import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.client.errors import PackageError, TaskFailedError, TemplateError
from ciel.client.packages import FileEntry, Package, decode_result, parse
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Failure, Future, Reference, Value

PATH = Path("/jobs/job.pack")
START = {"handler": "stdinout", "args": {"command_line": ["echo", "x"]}}


def read(package: Any, words: list[str] | None = None, **environ: str) -> Package:
    text = package if isinstance(package, str) else json.dumps(package)
    return parse(text, PATH, environ, words or [])


def complaint(package: Any, words: list[str] | None = None) -> str:
    with pytest.raises(PackageError) as caught:
        read(package, words)
    return str(caught.value).removeprefix("/jobs/job.pack: ")


def value(name: str, content: str) -> Value:
    return Value.of(ObjectId(name), content.encode())


def fetch(ref: Reference) -> bytes:
    if isinstance(ref, Failure):
        raise TaskFailedError(ref)
    assert isinstance(ref, Value)
    return ref.content


# --- what a package says --------------------------------------------------------------------------


def test_the_least_package_has_a_start() -> None:
    package = read({"start": {"handler": "grab"}})
    assert (package.handler, package.args, package.entries) == ("grab", {}, {})
    assert package.result is None


def test_the_example_is_a_package() -> None:
    path = Path(__file__).parents[2] / "examples" / "hello.pack"
    package = parse(path.read_text(), path, {}, [])
    assert package.args == {"command_line": ["echo", "Hello, world!"]}


def test_file_names_count_from_the_package_unless_cwd_is_said() -> None:
    entries = read(
        {
            "package": {
                "near": {"filename": "a.txt"},
                "here": {"filename": "a.txt", "cwd": True},
                "absolute": {"filename": "/etc/hosts"},
            },
            "start": START,
        }
    ).entries
    assert entries == {
        "near": FileEntry(Path("/jobs/a.txt")),
        "here": FileEntry(Path("a.txt")),
        "absolute": FileEntry(Path("/etc/hosts")),
    }


def test_an_entry_may_be_a_reference() -> None:
    package = read({"package": {"old": {"__ref__": ["c2", "x", 5, ["h:1"]]}}, "start": START})
    assert package.entries == {"old": Concrete(ObjectId("x"), 5, frozenset({"h:1"}))}


def test_environment_and_arguments_are_filled_in_anywhere() -> None:
    package = read(
        {
            "package": {"f": {"filename": {"__args__": 1}}},
            "start": {
                "handler": "h",
                "args": {
                    "n": {"__args__": 0},
                    "deep": [{"home": {"__env__": "HOME"}}, {"__env__": "NO", "default": [1]}],
                    "late": {"__args__": 9, "default": None},
                },
            },
        },
        ["7", "file"],
        HOME="/root",
    )
    assert package.entries["f"] == FileEntry(Path("/jobs/file"))
    assert package.args == {"n": "7", "deep": [{"home": "/root"}, [1]], "late": None}


def test_entries_are_named_by_start_args() -> None:
    package = read(
        {
            "package": {"script": {"filename": "s"}},
            "start": {"handler": "h", "args": {"all": [{"__package__": "script"}], "n": 1}},
        }
    )
    ref = value("script", "")
    assert package.start_args({"script": ref}) == {"all": [ref], "n": 1}


@pytest.mark.parametrize(
    "package, said",
    [
        ({}, "start: is missing: it says what to run"),
        ({"start": {}}, "start.handler: is missing"),
        ({"start": {"handler": 3}}, "start.handler: must name an executor"),
        ({"start": []}, "start: must be an object, not a list of 0"),
        ({"start": {"handler": "h", "args": []}}, "start.args: must be an object, not a list of 0"),
        ({"start": START, "extra": 1}, "extra: unknown; a package has options, package, result"),
        ({"start": START, "package": 1}, "package: must be an object, not a number"),
        ({"start": START, "package": {"a": 1}}, "package.a: must be an object, not a number"),
        ({"start": START, "package": {"a": {}}}, "package.a: names no file"),
        ({"start": START, "package": {"a": {"filename": 1}}}, 'package.a: "filename" must be'),
        (
            {"start": START, "package": {"a": {"filename": "f", "cwd": 1}}},
            'package.a: "cwd" must be true or false',
        ),
        (
            {"start": START, "package": {"a": {"filename": "f", "index": True}}},
            'package.a: "index" (data split into blocks) cannot be read yet',
        ),
        (
            {"start": START, "package": {"a": {"urls": ["http://x"]}}},
            'package.a: "urls" (data split into blocks) cannot be read yet',
        ),
        (
            {"start": START, "package": {"a": {"file": "f"}}},
            'package.a: "file" is unknown; a file is {"filename": PATH}',
        ),
        (
            {"start": {"handler": "h", "args": {"x": [{"__args__": 0}]}}},
            "start.args.x[0]: argument 0 is missing (0 given), and there is no default",
        ),
        (
            {"start": {"handler": "h", "args": {"x": {"__args__": -1}}}},
            'start.args.x: "__args__" must be a number, from 0',
        ),
        (
            {"start": {"handler": "h", "args": {"x": {"__env__": "NO"}}}},
            "start.args.x: NO is not in the environment, and there is no default",
        ),
        (
            {"start": {"handler": "h", "args": {"x": {"__env__": 1}}}},
            'start.args.x: "__env__" must name a variable',
        ),
        (
            {"start": {"handler": "h", "args": {"x": {"__package__": "f"}}}},
            "start.args.x: the package has no 'f'",
        ),
        (
            {"start": {"handler": "h", "args": {"x": {"__ref__": ["zz", "a"]}}}},
            "start.args.x: a reference has the unknown tag 'zz'",
        ),
        ({"start": START, "options": 1}, "options: must be an object, not a number"),
        ({"start": START, "result": 1}, "result: a template is null, a list or an object"),
        (
            {"start": START, "result": [{"__decode_ref__": "pickle"}]},
            "result[0]: cannot decode 'pickle', only json and noop",
        ),
        (
            {"start": START, "result": {"__concat__": []}},
            'result: "__concat__" must be a list of one template',
        ),
        ([1], "a package is a JSON object"),
        ('{"start": {"handler": "h"},\n "start": {}}', "start: is there twice"),
        ('{\n "start": {\n', "line 3: not JSON: "),
        ("", "line 1: not JSON: Expecting value"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(package: Any, said: str) -> None:
    assert complaint(package).startswith(said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.text() | st.sampled_from(["__env__", "__args__", "__package__", "__ref__", "filename"]),
        inner,
    ),
    max_leaves=10,
)  # fmt: skip


@given(JSON, JSON, JSON)
def test_any_json_is_a_package_or_one_clear_error(files: Any, args: Any, result: Any) -> None:
    # No error of another kind, whatever it is.
    with contextlib.suppress(PackageError):
        read({"package": files, "start": {"handler": "h", "args": args}, "result": result})


# --- what comes back ------------------------------------------------------------------------------


def test_without_a_template_the_references_stay() -> None:
    refs = [value("a", "x"), Future(ObjectId("b"))]
    assert decode_result(None, refs, fetch) == refs
    assert decode_result([None, None], refs, fetch) == refs


def test_noop_is_text_and_json_is_a_value() -> None:
    refs = [value("a", "Hello, world!\n"), value("b", '{"n": [1, 2]}')]
    template = [{"__decode_ref__": "noop"}, {"__decode_ref__": "json"}]
    assert decode_result(template, refs, fetch) == ["Hello, world!\n", {"n": [1, 2]}]


def test_bytes_that_are_no_text_are_shown() -> None:
    ref = Value.of(ObjectId("a"), b"\xff\n")
    assert decode_result({"__decode_ref__": "noop"}, ref, fetch) == "\\xff\n"


def test_references_inside_decoded_values_are_decoded_by_the_inner_template() -> None:
    inner = value("in", "7")
    outer = value("out", json.dumps({"n": {"__ref__": ["val", "in", inner.encoded]}, "m": 1}))
    template = {"__decode_ref__": "json", "value": {"n": {"__decode_ref__": "json"}}}
    assert decode_result(template, outer, fetch) == {"n": 7, "m": 1}


def test_concat_joins_what_the_references_hold() -> None:
    parts = [value("a", '"one "'), value("b", '"two"'), value("c", "3")]
    assert decode_result({"__concat__": [None]}, parts, fetch) == "one two3"
    plain = [value("a", "one "), value("b", "two")]
    template = {"__concat__": [None], "encoding": "noop"}
    assert decode_result(template, plain, fetch) == "one two"


def test_a_failed_reference_tells_its_story() -> None:
    failure = Failure(ObjectId("a"), "RUNTIME_EXCEPTION", "it ended with exit status 3\n")
    with pytest.raises(TaskFailedError, match=r"^it ended with exit status 3$"):
        decode_result([{"__decode_ref__": "noop"}], [failure], fetch)


@pytest.mark.parametrize(
    "template, result, said",
    [
        ([None], [], "result: a list of 1 was expected, not a list of 0"),
        ([None], {}, "result: a list of 1 was expected, not an object"),
        ([{"__decode_ref__": "json"}], [5], "result[0]: a reference was expected, not a number"),
        ({"a": None}, [], "result: an object was expected, not a list of 0"),
        ({"a": None}, {}, "result: there is no 'a'"),
        ({"__concat__": [None]}, "x", "result: a list of references was expected, not a text"),
        ({"__decode_ref__": "json"}, value("a", "{"), "result: object a is not JSON: "),
    ],
)
def test_a_result_of_another_shape_is_said_with_its_place(
    template: Any, result: Any, said: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        decode_result(template, result, fetch)
    assert str(caught.value).startswith(said)
