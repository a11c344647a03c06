import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ciel.client.errors import PackageError
from ciel.client.packages.package_file import Package, PackageFile, parse
from ciel.client.packages.specs import FileBlocks, ListedFiles, ListedUrls, Urls, WholeFile
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Value
from ciel.core.scheduling import Scheduling

PATH = Path("/jobs/job.pack")
START = {"handler": "stdinout", "args": {"command_line": ["echo", "x"]}}


def read(package: Any, words: list[str] | None = None, **environ: str) -> Package:
    text = package if isinstance(package, str) else json.dumps(package, indent=1)
    return parse(PackageFile(PATH, text), environ, words or [])


def complaint(package: Any, words: list[str] | None = None) -> str:
    with pytest.raises(PackageError) as caught:
        read(package, words)
    return str(caught.value).removeprefix("/jobs/job.pack:")


# --- what a package says --------------------------------------------------------------------------


def test_the_smallest_package_has_a_start() -> None:
    package = read({"start": {"handler": "grab"}})
    assert (package.handler, package.args, package.entries) == ("grab", {}, {})
    assert (package.result, package.options.scheduling) == (None, Scheduling())


def test_file_names_are_relative_to_the_package_without_cwd() -> None:
    entries = read(
        {
            "package": {
                "near": {"filename": "a.txt"},
                "here": {"filename": "a.txt", "cwd": True},
                "absolute": {"filename": "/etc/hosts", "index": False},
                "names": {"filenamelist": "d/names"},
                "here-names": {"filenamelist": "d/names", "cwd": True},
            },
            "start": START,
        }
    ).entries
    assert entries == {
        "near": WholeFile(Path("/jobs/a.txt")),
        "here": WholeFile(Path("a.txt")),
        "absolute": WholeFile(Path("/etc/hosts")),
        "names": ListedFiles(Path("/jobs/d/names"), Path("/jobs")),
        "here-names": ListedFiles(Path("d/names"), Path()),
    }


MIB = 1 << 20


@pytest.mark.parametrize(
    "spec, entry",
    [
        ({"filename": "f", "replication": 3}, WholeFile(Path("/jobs/f"), 3)),
        ({"filename": "f", "index": True}, FileBlocks(Path("/jobs/f"), 64 * MIB, 0, b"", 2)),
        (
            {"filename": "f", "index": True, "block_size": 5, "delimiter": "\r\n"},
            FileBlocks(Path("/jobs/f"), 5, 0, b"\r\n"),
        ),
        (
            {"filename": "f", "index": True, "block_size": "8MiB", "replication": {"__args__": 0}},
            FileBlocks(Path("/jobs/f"), 8 * MIB, 0, b"", 7),
        ),
        ({"filename": "f", "index": True, "blocks": 9}, FileBlocks(Path("/jobs/f"), 64 * MIB, 9)),
        ({"filenamelist": "f", "replication": 1}, ListedFiles(Path("/jobs/f"), Path("/jobs"), 1)),
        ({"filename": "f", "urlindex": True, "replication": 3}, ListedUrls(Path("/jobs/f"))),
        ({"filename": "f", "urlindex": True, "repeat": 2}, ListedUrls(Path("/jobs/f"), 2)),
        ({"urls": ["http://h/x"], "urlindex": True}, Urls(("http://h/x",))),
        (
            {"urls": ["swbs://h:1/x", "ftp://h/y"], "replication": 3, "repeat": 4},
            Urls((Concrete(ObjectId("x"), None, frozenset({"h:1"})), "ftp://h/y"), 4),
        ),
        ({"urls": []}, Urls(())),
        ({"__ref__": ["c2", "x", 5, ["h:1"]]}, Concrete(ObjectId("x"), 5, frozenset({"h:1"}))),
    ],
)
def test_an_entry_has_one_of_these_forms(spec: Any, entry: Any) -> None:
    assert read({"package": {"k": spec}, "start": START}, ["7"]).entries == {"k": entry}


def test_environment_and_arguments_are_substituted_anywhere() -> None:
    package = read(
        {
            "package": {"f": {"filename": {"__args__": 1}}},
            "start": {
                "handler": "h",
                "args": {
                    "n": {"__args__": 0},
                    "deep": [{"home": {"__env__": "HOME"}}, {"__env__": "NO", "default": [1]}],
                    "late": {"__args__": 9, "default": None},
                    "either": {"__args__": 9, "default": {"__env__": "HOME"}},
                },
            },
        },
        ["7", "file"],
        HOME="/root",
    )
    assert package.entries["f"] == WholeFile(Path("/jobs/file"))
    assert package.args == {
        "n": "7", "deep": [{"home": "/root"}, [1]], "late": None, "either": "/root",
    }  # fmt: skip


def test_entries_are_named_by_start_args() -> None:
    package = read(
        {
            "package": {"script": {"filename": "s"}},
            "start": {
                "handler": "h",
                "args": {"all": [{"__package__": {"__args__": 0}}], "n": 1},
            },
        },
        ["script"],
    )
    ref = Value.of(ObjectId("script"), b"")
    assert package.start_args({"script": ref}) == {"all": [ref], "n": 1}


def test_options_choose_the_scheduling_of_the_job() -> None:
    options = {
        "scheduler": "locality",
        "sched_opts": {"min_saving_threshold": 1048576},
        "journal": True,
        "journal_sync_buffer": 10,
    }
    found = read({"start": START, "options": options}).options
    assert found.scheduling == Scheduling("locality", (("min_saving_threshold", 1048576.0),))
    assert found.idle == ("journal", "journal_sync_buffer")
    for policy, expected in (("random", "random"), ("execfeatures", "locality")):
        found = read({"start": START, "options": {"scheduler": policy}}).options
        assert found.scheduling == Scheduling(expected)


# --- refusals -------------------------------------------------------------------------------------


def with_entry(spec: Any) -> dict[str, Any]:
    return {"package": {"a": spec}, "start": START}


def with_args(args: Any) -> dict[str, Any]:
    return {"start": {"handler": "h", "args": args}}


@pytest.mark.parametrize(
    "package, said",
    [
        ({}, '1: "start", the task to run, is missing'),
        ({"start": {}}, '2: start: "handler", the name of the executor, is missing'),
        ({"start": {"handler": 3}}, "3: start.handler: must name an executor, not be a number"),
        ({"start": []}, "2: start: must be an object, not a list of 0"),
        (
            {"start": {"handler": "h", "arg": {}}},
            '4: start.arg: unknown; "start" has handler, args',
        ),
        (with_args([]), "4: start.args: must be an object, not a list of 0"),
        (
            {"start": START, "x": 1},
            "11: x: unknown; a package file has package, start, options, result",
        ),
        ({"start": START, "package": 1}, "11: package: must be an object, not a number"),
        (with_entry(1), "3: package.a: must be an object, not a number"),
        (with_entry({}), "3: package.a: names nothing: write "),
        (with_entry({"cwd": True}), "3: package.a: names nothing: write "),
        (with_entry({"filename": 1}), "4: package.a.filename: must be a path, not a number"),
        (with_entry({"filename": ""}), "4: package.a.filename: must be a path, not empty"),
        (with_entry({"filename": "f", "cwd": 1}), "5: package.a.cwd: must be true or false"),
        (with_entry({"file": "f"}), "4: package.a.file: unknown; an entry has "),
        (with_entry({"urls": "x"}), "4: package.a.urls: must be a list of URLs, not a text"),
        (
            with_entry({"urls": ["http://h/", "gopher://h/"]}),
            "6: package.a.urls[1]: 'gopher://h/' is none of http, https, ftp, file, swbs",
        ),
        (with_entry({"urls": [1]}), "5: package.a.urls[0]: must be a URL, not a number"),
        (
            with_entry({"urls": ["http://h/a b"]}),
            "5: package.a.urls[0]: 'http://h/a b' contains a space",
        ),
        (
            with_entry({"urls": ["http://u:p@h/"]}),
            "5: package.a.urls[0]: 'http://u:p@h/' contains '@'",
        ),
        (
            with_entry({"urls": [], "filename": "f"}),
            '4: package.a.urls: either "filename" or "urls", not both',
        ),
        (
            with_entry({"urls": [], "urlindex": False}),
            "5: package.a.urlindex: must be true: an entry",
        ),
        (
            with_entry({"filename": "f", "delimiter": "x"}),
            "5: package.a.delimiter: is not allowed for a whole file; allowed are filename, cwd",
        ),
        (
            with_entry({"urls": [], "cwd": True}),
            '5: package.a.cwd: is not allowed for "urls"; allowed',
        ),
        (
            with_entry({"filename": "f", "index": True, "replication": 0}),
            "6: package.a.replication: must be a number, 1 to 100",
        ),
        (
            with_entry({"filename": "f", "index": True, "blocks": 2, "block_size": 3}),
            '6: package.a.blocks: either "blocks" or "block_size", not both',
        ),
        (
            with_entry({"filename": "f", "index": True, "block_size": "much"}),
            "6: package.a.block_size: must be a size in bytes",
        ),
        (
            with_entry({"filename": "f", "index": True, "delimiter": ""}),
            "6: package.a.delimiter: must be a text",
        ),
        (
            with_entry({"__ref__": ["fetch2", "x", "http://h/"]}),
            '4: package.a.__ref__: write {"urls": ["http://h/"]} to have a URL fetched',
        ),
        (
            with_entry({"__ref__": ["t2", "x", ["h:1"]]}),
            "4: package.a.__ref__: it is the reference of a",
        ),
        (with_entry({"__package__": "b"}), "4: package.a.__package__: unknown; an entry has"),
        (
            with_args({"x": [{"__args__": 0}]}),
            "6: start.args.x[0]: argument 0 is missing (0 given), and it has no default",
        ),
        (
            with_args({"x": {"__args__": -1}}),
            "6: start.args.x.__args__: must be the number of an argument, from 0",
        ),
        (
            with_args({"x": {"__env__": "NO"}}),
            "5: start.args.x: NO is not in the environment, and it has no default",
        ),
        (with_args({"x": {"__env__": 1}}), "6: start.args.x.__env__: must name a variable, not be"),
        (
            with_args({"x": {"__env__": "A", "defualt": 1}}),
            '7: start.args.x.defualt: unknown; an object with "__env__" has __env__, default',
        ),
        (
            with_args({"x": {"__package__": "f"}}),
            "6: start.args.x.__package__: the package has no entry",
        ),
        (with_args({"x": {"__package__": []}}), "6: start.args.x.__package__: must be a key, not"),
        (
            with_args({"x": {"__ref__": ["zz", "a"]}}),
            "6: start.args.x.__ref__: a reference has the unknown tag 'zz'",
        ),
        ({"start": START, "options": 1}, "11: options: must be an object, not a number"),
        (
            {"start": START, "options": {"scheduler": "fifo"}},
            "12: options.scheduler: unknown policy 'fifo'",
        ),
        (
            {"start": START, "options": {"sched_opts": {"nice": 1}}},
            "12: options.sched_opts: locality has no option 'nice'",
        ),
        ({"start": START, "options": {"journal": 1}}, "12: options.journal: must be true or false"),
        ({"start": START, "options": {"prio": 1}}, "12: options.prio: unknown; the options of a"),
        ({"start": START, "result": 1}, "11: result: a template must be null, a list or an object"),
        (
            {"start": START, "result": [{"__decode_ref__": "pickle"}]},
            "13: result[0].__decode_ref__: reading a pickle runs code in it",
        ),
        ([1], "1: a package is a JSON object, not a list of 1"),
        ('{"start": {"handler": "h"},\n "start": {}}', "2: start: the key occurs twice"),
        ('{\n "start": {\n', "2: not JSON: the text ends, but the { of line 2 is not closed"),
    ],
)
def test_errors_name_their_place(package: Any, said: str) -> None:
    assert complaint(package)[: len(said)] == said


MARKS = ["__env__", "__args__", "__package__", "__ref__", "default"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.text() | st.sampled_from([*MARKS, "filename", "urls", "index", "repeat"]),
        inner,
    ),
    max_leaves=10,
)  # fmt: skip


@pytest.mark.slow
@given(JSON, JSON, JSON)
def test_any_json_is_a_package_or_one_clear_error(files: Any, args: Any, result: Any) -> None:
    # No other error, whatever the package contains.
    with contextlib.suppress(PackageError):
        read({"package": files, "start": {"handler": "h", "args": args}, "result": result})


def test_arguments_that_are_not_utf_8_only_name_files() -> None:
    word = b"\xff".decode(errors="surrogateescape")
    package = {"package": {"a": {"filename": {"__args__": 0}}}, "start": START}
    assert read(package, [word]).entries["a"] == WholeFile(Path(f"/jobs/{word}"))
    said = "5: start.args.x: its value is not UTF-8"
    assert complaint(with_args({"x": {"__args__": 0}}), [word]) == said
