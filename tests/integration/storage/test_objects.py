"""Tests `ciel object` on a cluster of two workers."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ciel.access.keys import Key
from ciel.client.data.objects import read_object
from ciel.client.data.worker_http import Connections
from ciel.client.errors import ObjectUnreadableError
from ciel.core.ids import ObjectId
from ciel.core.refs import Concrete
from ciel.testing.homes import HandCluster, Home, wait_for

Typed = Callable[..., tuple[int, str, str]]
CONTENT = bytes(range(256)) * 20


class Desk:
    """The command line of a home on the shared cluster, which must be unchanged at the end."""

    def __init__(self, home: Home, typed: Typed) -> None:
        self.home = home
        self._typed = typed
        self.file = home.path / "some data"
        self.file.write_bytes(CONTENT)

    def ciel(self, *words: str) -> tuple[int, str, str]:
        return self._typed(self.home, *words)

    def out(self, *words: str) -> str:
        status, out, err = self.ciel(*words)
        assert status == 0, err
        return out.strip()

    def facts(self, *words: str) -> Any:
        return json.loads(self.out(*words, "--json"))

    def put(self, *words: str) -> str:
        return self.out("object", "put", *words)


@pytest.fixture
def desk(home: Home, typed: Typed, lasting_cluster: HandCluster) -> Iterator[Desk]:
    home.environ["CIEL_ACCESS"] = str(lasting_cluster.access)
    desk = Desk(home, typed)
    yield desk
    desk.ciel("object", "rm", "all")
    desk.ciel("job", "rm", "all")


def test_a_file_can_be_put_shown_fetched_and_removed(
    desk: Desk, lasting_cluster: HandCluster
) -> None:
    object_id = desk.put(str(desk.file))
    assert re.fullmatch("upload:[0-9a-f]{32}", object_id)
    facts = desk.facts("object", "info", "some data")
    assert facts["age_s"] < 60
    assert facts.pop("reference")["__ref__"][:2] == ["c2", object_id]
    assert {**facts, "age_s": 0} == {
        "object": object_id, "state": "there", "size_bytes": len(CONTENT),
        "at": sorted(lasting_cluster.netlocs()), "made_by": None, "job": None, "wanted_by": [],
        "copies": {"wanted": 2, "there": 2, "copying": 0, "why": ""}, "name": "some data",
        "age_s": 0,
    }  # fmt: skip
    (row,) = desk.facts("object", "list")
    assert row["object"] == object_id
    copy = desk.home.path / "copy"
    told = desk.facts("object", "get", object_id, "-o", str(copy))
    assert told == {"object": object_id, "size_bytes": len(CONTENT), "file": str(copy)}
    assert copy.read_bytes() == CONTENT
    assert desk.facts("object", "rm", "last") == {"removed": [object_id]}
    assert desk.facts("object", "list") == []
    status, _, err = desk.ciel("object", "get", object_id)
    assert (status, err.count("\n")) == (2, 1)
    assert f"no object {object_id} is known" in err


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.parent / "far")])
def test_writing_to_a_pipe_or_link_does_not_replace_it(
    desk: Desk, make: Callable[[Path], None]
) -> None:
    desk.put(str(desk.file))
    path = desk.home.path / "odd"
    make(path)
    kind = stat.S_IFMT(path.lstat().st_mode)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(path.read_bytes) if stat.S_ISFIFO(kind) else None
        desk.out("object", "get", "last", "-o", str(path))
        assert (read.result() if read else path.read_bytes()) == CONTENT
    assert stat.S_IFMT(path.lstat().st_mode) == kind
    status, _, err = desk.ciel("key", "read", "-o", str(desk.home.path))
    assert (status, err.count("not a regular file")) == (2, 1)


def test_a_removed_object_is_deleted_from_all_workers(
    desk: Desk, lasting_cluster: HandCluster
) -> None:
    object_id = ObjectId(desk.put(str(desk.file)))
    key, connections = Key.from_text(lasting_cluster.key), Connections()

    def holders() -> list[str]:
        found = []
        for place in lasting_cluster.netlocs():
            ref = Concrete(object_id, len(CONTENT), frozenset((place,)))
            with suppress(ObjectUnreadableError):
                assert b"".join(read_object(ref, key, connections)) == CONTENT
                found.append(place)
        return found

    try:
        assert holders() == lasting_cluster.netlocs()
        desk.out("object", "rm", "last")
        wait_for(lambda: not holders(), "the end of both copies")
    finally:
        connections.close()


def test_several_objects_are_printed_in_order(desk: Desk) -> None:
    short = desk.home.path / "short"
    short.write_text("few\n")
    first, second = desk.put(str(short), str(short)).split()
    assert desk.out("object", "get", first, second) == "few\nfew"
    lines = desk.out("object", "get", first, second, "--json").splitlines()
    assert [json.loads(line)["output"] for line in lines] == ["few\n", "few\n"]
    status, _, err = desk.ciel("object", "info", "short")
    assert status == 2
    assert f"2 objects are called short; name one by its id: {first}, {second}" in err


def test_standard_input_is_put_under_a_name(desk: Desk) -> None:
    ended = desk.home.run("bash", "-c", "seq 2000 | ciel object put --name numbers -")
    assert ended.returncode == 0, ended.stderr
    numbers = "\n".join(map(str, range(1, 2001)))
    assert desk.out("object", "get", "numbers") == numbers


def test_an_output_of_a_job_is_selected_by_its_task(desk: Desk) -> None:
    number = desk.out("submit", "--detach", "--array", "1-3", "--", "echo", "made {}")
    desk.out("job", "wait", number)
    assert desk.out("object", "get", f"{number}:2") == "made 2"
    told = desk.facts("object", "info", "last:3")
    assert told["job"] == int(number)
    assert told["wanted_by"] == [int(number)]
    assert [row["size_bytes"] for row in desk.facts("object", "list", "--job", "last")] == [7] * 3
    known = [row["object"] for row in desk.facts("object", "list", "--known", "--all")]
    assert told["object"] in known
    status, _, err = desk.ciel("object", "rm", "last:3")
    assert status == 1
    assert "it is deleted with the job that produced it" in err


def test_programs_get_objects_as_files(desk: Desk) -> None:
    number = desk.out("submit", "--detach", "--", "echo", "made before")
    desk.out("job", "wait", number)
    desk.put(str(desk.file))
    named = ["--object", "first=some data", "--object", f"second={number}:1"]
    assert desk.out("submit", *named, "--", "wc", "-c", "first", "second").split() == [
        "5120", "first", "12", "second", "5132", "total",
    ]  # fmt: skip
    desk.out("job", "rm", "all")
    assert desk.facts("object", "info", "last")["state"] == "there"


@pytest.mark.parametrize(
    "option, said",
    [
        ("first", "expected NAME=OBJECT"),
        ("../first=last", "expected NAME=OBJECT"),
        ("first=nowhere", "no object nowhere is known"),
        ("some data=last", "another file has that name"),
    ],
)
def test_an_object_that_cannot_be_a_file_is_refused(desk: Desk, option: str, said: str) -> None:
    desk.put(str(desk.file))
    status, _, err = desk.ciel("submit", "--in", "some data", "--object", option, "--", "true")
    assert status == 2
    assert said in err
    assert desk.facts("job", "list") == []


@pytest.mark.parametrize(
    "program, said",
    [
        (["false"], "ended with exit status 1"),
        (["sleep", "1000"], "does not exist yet: task"),
    ],
)
def test_an_object_that_cannot_be_fetched_is_reported_and_no_file_is_written(
    desk: Desk, program: list[str], said: str
) -> None:
    number = desk.out("submit", "--detach", "--", *program)
    if program == ["false"]:
        desk.ciel("job", "wait", number)
    copy = desk.home.path / "copy"
    status, out, err = desk.ciel("object", "get", f"{number}:1", "-o", str(copy))
    assert (status, out) == (1, "")
    assert said in err
    assert list(desk.home.path.glob("*copy*")) == []
    desk.ciel("job", "cancel", number)


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["put", "some data", "nowhere"], 2, "nowhere: the file does not exist"),
        (["put", "/dev/zero"], 2, "/dev/zero: it is not a regular file"),
        (["put", "--name", "all", "some data"], 2, "cannot have the name all"),
        (["rm", "all", "nowhere"], 2, "no object nowhere is known"),
        (["put", "--name", "x", "some data", "some data"], 2, "--name names one object"),
        (["put", "--name", "x" * 300, "some data"], 2, "at most 200 characters"),
        (["get", "nowhere"], 2, "no object nowhere is known"),
        (["get", "999:1"], 2, "no object 999:1 is known"),
        (["info", "../../etc/passwd"], 2, "no object ../../etc/passwd is known"),
        (["rm", "upload:" + "0" * 32], 2, "no object upload:000"),
        (["list", "--job", "999"], 2, "no job 999"),
    ],
)
def test_an_invalid_command_is_reported_in_one_sentence(
    desk: Desk, words: list[str], status: int, said: str
) -> None:
    desk.put("some data")
    found, out, err = desk.ciel("object", *words)
    assert (found, out, err.count("\n")) == (status, "", 1)
    assert said in err
    assert len(desk.facts("object", "list")) == 1
