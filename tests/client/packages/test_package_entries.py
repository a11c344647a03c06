import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ciel.client.errors import PackageError
from ciel.client.packages.entries import (
    FileParts,
    Ready,
    Uploaded,
    check_entries,
    fetch,
    open_package,
    upload,
)
from ciel.client.packages.package_file import parse_entries
from ciel.client.packages.specs import FileBlocks, Urls, WholeFile
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete, Future, Reference, Value
from ciel.wire import codec
from ciel.wire.references import from_json, to_json

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file, or a package with entries, into one directory."""

    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, dict):
            content = json.dumps({"package": content}, indent=1).encode()
        path.write_bytes(content)
        return path

    return write


def looked_at(package: Path) -> dict[str, Ready]:
    file = open_package(package)
    return check_entries(file, parse_entries(file, {}))


def complaint(package: Path) -> str:
    with pytest.raises(PackageError) as caught:
        looked_at(package)
    return str(caught.value).replace(str(package.parent), "D")


# --- looking --------------------------------------------------------------------------------------


def test_lists_are_read_and_blank_lines_passed_over(write: Write, tmp_path: Path) -> None:
    write("a", b"")
    write("b\xff".encode("latin-1").decode(errors="surrogateescape"), b"")
    write("names", b"a\n\n  b\xff \r\na")
    write("urls", b"http://h/1\n\nftp://h/2\nswbs://h:1/x")
    package = write(
        "p",
        {
            "files": {"filenamelist": "names", "replication": 1},
            "web": {"filename": "urls", "urlindex": True, "repeat": 2},
            "blocks": {"filename": "names", "index": True},
        },
    )
    b = tmp_path / b"b\xff".decode(errors="surrogateescape")
    assert looked_at(package) == {
        "files": FileParts((tmp_path / "a", b, tmp_path / "a"), 1),
        "web": Urls(
            ("http://h/1", "ftp://h/2", Concrete(ObjectId("x"), None, frozenset({"h:1"}))), 2
        ),
        "blocks": FileBlocks(tmp_path / "names"),
    }


@pytest.mark.parametrize(
    "entry, said",
    [
        ({"filename": "none"}, "D/p:3: package.k: there is no file D/none"),
        ({"filename": "d"}, "D/p:3: package.k: D/d is a directory"),
        ({"filename": "/dev/null"}, "D/p:3: package.k: /dev/null is not a regular file"),
        ({"filename": "a\0"}, "D/p:3: package.k: there is no file D/a\0"),
        ({"filename": "x" * 300}, f"D/p:3: package.k: D/{'x' * 300}: File name too long"),
        ({"filename": "a/b"}, "D/p:3: package.k: D/a/b: Not a directory"),
        ({"filename": "none", "index": True}, "D/p:3: package.k: there is no file D/none"),
        ({"filenamelist": "none"}, "D/p:3: package.k: there is no file D/none"),
        ({"filenamelist": "names"}, "D/names:3: there is no file D/gone (listed for 'k' in D/p)"),
        (
            {"filename": "urls", "urlindex": True},
            "D/urls:2: 'gopher://h' is none of http, https, ftp, file, swbs"
            " (listed for 'k' in D/p)",
        ),
        ({"filename": "bytes", "urlindex": True}, "D/bytes:2: not UTF-8"),
        (
            {"filename": "big", "index": True, "block_size": 1},
            "D/p:6: package.k.block_size: D/big would have 1000001 blocks; "
            "at most 1000000 are allowed",
        ),
    ],
)  # fmt: skip
def test_missing_files_are_reported_before_anything_is_sent(
    write: Write, tmp_path: Path, entry: Any, said: str
) -> None:
    (tmp_path / "d").mkdir()
    write("a", b"")
    write("names", b"a\n\ngone\n")
    write("urls", b"http://h/\ngopher://h\n")
    write("bytes", b"http://h/\n\xff\n")
    with write("big", b"").open("r+b") as file:
        file.truncate(1_000_001)
    assert complaint(write("p", {"k": entry})) == said


def test_a_package_is_a_file_of_bounded_length_in_utf_8(write: Write, tmp_path: Path) -> None:
    assert complaint(tmp_path / "p") == "D/p: No such file or directory"
    assert complaint(write("p", b'{\n"\xff": 1}')) == "D/p:2: not UTF-8"
    assert complaint(Path("/dev/zero")).endswith("zero: longer than 256 MiB")


# --- uploading ------------------------------------------------------------------------------------


class Lab:
    """A fake client, with its workers and a job; records uploads, and runs `grab`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int = 3) -> None:
        self.held: dict[str, bytes] = {}
        self.wanted: list[Reference] = []
        self.released: list[Reference] = []
        self.grabbed: list[str] = []
        self.location = self
        self.key = "a key"
        self._netlocs = [f"h:{n}" for n in range(1, workers + 1)]
        monkeypatch.setattr("ciel.client.data.uploads.upload_file", self._upload)

    def ask(self, topic: str) -> Any:
        return [{"netloc": netloc, "queued": 0} for netloc in self._netlocs]

    def upload_content(self, content: bytes, name: str) -> Reference:
        return Value.of(ObjectId(f"content:{name}"), content)

    def _upload(
        self, file: Any, name: str, netlocs: Sequence[str], key: str, _: Any, copies: int
    ) -> Reference:
        object_id = ObjectId(f"upload:{len(self.held)}")
        self.held[object_id] = file.read()
        return Concrete(object_id, len(self.held[object_id]), frozenset(netlocs[:copies]))

    def add(self, executor: str, arguments: Any, **more: Any) -> list[Future]:
        self.grabbed += arguments["args"]["urls"]
        return [Future(ObjectId(f"task:{len(self.grabbed)}"))]

    def want(self, refs: Any) -> None:
        self.wanted += refs

    def release(self, refs: Any) -> None:
        self.released += refs

    def read(self, ref: Reference) -> bytes:
        place = frozenset({"h:1"})
        return codec.encode(to_json(Concrete(ObjectId(f"{ref.id}:grab:0"), 7, place)))

    def bring(self, package: Path) -> Uploaded:
        me = cast(Any, self)
        entries = looked_at(package)
        return fetch(me, me, entries, upload(me, entries))

    def contents(self, index: Reference) -> list[bytes]:
        """Return the contents of the pieces of an index."""
        assert isinstance(index, Value)
        return [self.held[ref.id] for ref in from_json(codec.decode(index.content))]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_whole_files_go_to_workers_in_turn(lab: Lab, write: Write) -> None:
    write("a", b"A" * 5)
    entry = {"filename": "a"}
    package = write("p", {"x": entry, "y": entry, "z": {**entry, "replication": 1}})
    assert lab.bring(package) == Uploaded(
        {
            "x": Concrete(ObjectId("upload:0"), 5, frozenset({"h:1", "h:2"})),
            "y": Concrete(ObjectId("upload:1"), 5, frozenset({"h:3", "h:1"})),
            "z": Concrete(ObjectId("upload:2"), 5, frozenset({"h:2"})),
        },
        [],
    )


LINES = b"".join(b"%d" % n * (n % 7) + b"\n" for n in range(200))


@pytest.mark.parametrize(
    "content, said, blocks",
    [
        (b"", {}, []),
        (b"abcdefg", {"block_size": 3}, [b"abc", b"def", b"g"]),
        (b"abcdef", {"block_size": 3}, [b"abc", b"def"]),
        (b"abcdefg", {"blocks": 3}, [b"abc", b"def", b"g"]),
        (b"ab", {"blocks": 3}, [b"a", b"b"]),
        (b"a\nb\nc", {"block_size": 2, "delimiter": "\n"}, [b"a\n", b"b\n", b"c"]),
        (b"abc\nd\n", {"block_size": 2, "delimiter": "\n"}, [b"abc\n", b"d\n"]),
        (b"a--b--c", {"block_size": 2, "delimiter": "--"}, [b"a--", b"b--", b"c"]),
        (b"no end", {"block_size": 2, "delimiter": "\n"}, [b"no end"]),
        (LINES, {}, [LINES]),
    ],
)
def test_a_file_is_divided_into_blocks(
    lab: Lab, write: Write, content: bytes, said: Any, blocks: list[bytes]
) -> None:
    write("f", content)
    brought = lab.bring(write("p", {"k": {"filename": "f", "index": True, **said}}))
    assert lab.contents(brought.package["k"]) == blocks
    assert [ref.id for ref in brought.pieces] == [*lab.held]


def test_a_delimiter_is_found_wherever_it_lies(
    lab: Lab, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ciel.client.data.pieces._SEARCHED_BYTES", 2)
    write("f", b"abcd<end>ef<end")
    said = {"filename": "f", "index": True, "block_size": 1, "delimiter": "<end>"}
    brought = lab.bring(write("p", {"k": said}))
    assert lab.contents(brought.package["k"]) == [b"abcd<end>", b"ef<end"]


def test_listed_files_are_the_pieces_of_an_index(lab: Lab, write: Write) -> None:
    write("names", b"two\none\ntwo\n")
    write("one", b"1")
    write("two", b"2")
    brought = lab.bring(write("p", {"k": {"filenamelist": "names"}}))
    assert lab.contents(brought.package["k"]) == [b"2", b"1", b"2"]


def test_each_url_is_fetched_once_and_stays_with_the_job(lab: Lab, write: Write) -> None:
    urls = ["http://h/1", "swbs://h:9/x", "http://h/2", "http://h/1"]
    package = write("p", {"k": {"urls": urls, "repeat": 2}, "l": {"urls": urls[:1]}})
    brought = lab.bring(package)
    assert lab.grabbed == ["http://h/1", "http://h/2"]
    one, two = ("task:1:grab:0", "task:2:grab:0")
    index = brought.package["k"]
    assert isinstance(index, Value)
    refs = from_json(codec.decode(index.content))
    assert [ref.id for ref in refs] == [one, "x", two, one] * 2
    assert lab.wanted == lab.released == [Future(ObjectId("task:1")), Future(ObjectId("task:2"))]
    assert {ref.id for ref in brought.pieces} == {one, two, "x"}


def test_a_reference_stays_as_it_is(lab: Lab, write: Write) -> None:
    brought = lab.bring(write("p", {"k": {"__ref__": ["c2", "x", 5, ["h:1"]]}}))
    assert brought == Uploaded({"k": Concrete(ObjectId("x"), 5, frozenset({"h:1"}))}, [])


@pytest.mark.slow
def test_a_hundred_thousand_entries_are_read(lab: Lab, write: Write) -> None:
    write("f", b"x")
    keys = 100_000
    entries = looked_at(write("p", {f"k{n}": {"filename": "f"} for n in range(keys)}))
    assert len(entries) == keys
    assert all(type(entry) is WholeFile for entry in entries.values())
