"""Tests the translation of documents of TES, without a master."""

from __future__ import annotations

from typing import Any

import pytest

from ciel.core.ids import JobId
from ciel.core.tasks import Needs
from ciel.master.resources.submissions import InvalidSubmissionError, Submission
from ciel.tes import documents

COMMAND = {"image": "alpine", "command": ["true"]}
WHOLE = {
    "name": "all of it",
    "description": "every field",
    "inputs": [
        {"path": "/in/a", "url": "file:///a", "type": "FILE", "streamable": True},
        {"path": "/in/b", "content": "text", "name": "b", "description": "inline"},
    ],
    "outputs": [
        {"path": "/out/*", "path_prefix": "/out", "url": "file:///o", "type": "DIRECTORY"}
    ],
    "resources": {
        "cpu_cores": 2, "ram_gb": 1.5, "disk_gb": 3, "preemptible": False, "zones": ["b"],
        "backend_parameters": {"x": "1"}, "backend_parameters_strict": False,
    },
    "executors": [
        {
            **COMMAND, "workdir": "/w", "stdin": "/in/a", "stdout": "/o", "stderr": "/e",
            "env": {"__ref__": "not a reference"}, "ignore_error": True,
        }
    ],
    "volumes": ["/v"],
    "tags": {"run": "1"},
}  # fmt: skip


def read(body: Any) -> Submission:
    return documents.read_task(body, JobId("job"), without_images=True)


def test_a_document_survives_the_way_into_a_task() -> None:
    read_only = {"id": "x", "state": "COMPLETE", "logs": [], "creation_time": "now"}
    submission = read(WHOLE | read_only | {"later": "version"})
    assert documents.document_of(submission.tasks[0].spec.payload) == WHOLE
    assert submission.tasks[0].known == ()


def test_resources_become_needs() -> None:
    needs = read(WHOLE).tasks[0].spec.needs
    assert (needs.slots, needs.memory_bytes) == (2, 1_500_000_000)
    assert read({"executors": [COMMAND]}).tasks[0].spec.needs == Needs()


def test_only_the_status_is_wanted() -> None:
    submission = read({"executors": [COMMAND]})
    assert submission.wanted == submission.tasks[0].spec.outputs[:1]
    assert submission.spec.keep
    assert submission.spec.detached


@pytest.mark.parametrize(
    "change, where",
    [
        ({"executors": None}, "executors"),
        ({"executors": []}, "executors"),
        ({"executors": [{"command": ["true"]}]}, "executors[0].image"),
        ({"executors": [{**COMMAND, "command": []}]}, "executors[0].command"),
        ({"executors": [{**COMMAND, "command": ["a", 1]}]}, "executors[0].command[1]"),
        ({"executors": [COMMAND, {**COMMAND, "workdir": "w"}]}, "executors[1].workdir"),
        ({"executors": [{**COMMAND, "stdin": "/a/../../b"}]}, "executors[0].stdin"),
        ({"executors": [{**COMMAND, "env": {"A": 1}}]}, "executors[0].env.A"),
        ({"executors": [{**COMMAND, "ignore_error": "no"}]}, "executors[0].ignore_error"),
        ({"inputs": [{"url": "file:///a"}]}, "inputs[0].path"),
        ({"inputs": [{"path": "/a"}]}, "inputs[0].url"),
        ({"inputs": [{"path": "/a", "url": "/b", "type": "LINK"}]}, "inputs[0].type"),
        ({"outputs": [{"path": "/a"}]}, "outputs[0].url"),
        ({"outputs": {"path": "/a"}}, "outputs"),
        ({"resources": {"cpu_cores": 1.5}}, "resources.cpu_cores"),
        ({"resources": {"cpu_cores": 5000}}, "resources.cpu_cores"),
        ({"resources": {"ram_gb": -1}}, "resources.ram_gb"),
        ({"resources": {"preemptible": 1}}, "resources.preemptible"),
        ({"volumes": ["v"]}, "volumes[0]"),
        ({"tags": ["a"]}, "tags"),
        ({"name": "a\0b"}, "name"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidSubmissionError) as raised:
        read({"executors": [COMMAND]} | change)
    assert raised.value.where == where


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(InvalidSubmissionError, match="it must be an object"):
        read(body)


def test_an_image_is_refused_if_it_cannot_be_used() -> None:
    with pytest.raises(InvalidSubmissionError, match="CIEL_TES_IMAGES=ignore"):
        documents.read_task({"executors": [COMMAND]}, JobId("job"), without_images=False)


LOG = {
    "logs": [{"exit_code": 0, "stdout": "o", "stderr": "e", "start_time": "t"}],
    "outputs": [],
    "system_logs": ["s"],
}


def test_the_basic_view_lacks_contents_and_texts() -> None:
    found = documents.described("id", "COMPLETE", 0.0, WHOLE, LOG, is_full=False)
    assert found["inputs"][1] == {"path": "/in/b", "name": "b", "description": "inline"}
    assert found["logs"] == [{"logs": [{"exit_code": 0, "start_time": "t"}], "outputs": []}]
    assert found["creation_time"] == "1970-01-01T00:00:00.000+00:00"


def test_the_full_view_has_everything() -> None:
    found = documents.described("id", "COMPLETE", 0.0, WHOLE, LOG, is_full=True)
    assert found["inputs"] == WHOLE["inputs"]
    assert found["logs"] == [LOG]
    assert documents.described("id", "QUEUED", 0.0, WHOLE, None, is_full=True)["logs"] == []


@pytest.mark.parametrize(
    "wanted, expected",
    [({"run": "1"}, True), ({"run": ""}, True), ({"run": "2"}, False), ({"x": ""}, False)],
)
def test_tasks_are_found_by_their_tags(wanted: dict[str, str], expected: bool) -> None:
    assert documents.has_tags(WHOLE, wanted) is expected
