"""Translates documents of TES into jobs, and jobs into documents of TES.

A document is JSON from a client. Reading checks it, and keeps only the known fields. A wrong one
raises `InvalidSubmissionError`, which names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ciel.core.events import AddTask
from ciel.core.ids import JobId
from ciel.core.jobs import JOB_NAME_MAX_LENGTH, JobSpec
from ciel.core.tasks import DEFAULT_NEEDS, Mentions, Needs
from ciel.master.resources.submissions import InvalidSubmissionError, Submission
from ciel.wire import codec
from ciel.wire.descriptors import make_task

EXECUTOR: Final = "tes"
FILES_MAX: Final = 5000
GIGABYTE: Final = 10**9
STATUS, LOG = range(2)
"""The outputs of a task: a short status, and the log that views other than `MINIMAL` contain."""

Check = Callable[[Any, str], Any]


# --- reading --------------------------------------------------------------------------------------


def read_task(body: Any, job: JobId, *, without_images: bool) -> Submission:
    """Read a task of TES as a job. `without_images`: run commands outside of their images."""
    document: dict[str, Any] = _TASK(body, "task")
    needs = _needs(document)
    check_images(without_images=without_images)
    # As a text, no key of it can be read as a reference.
    text = codec.encode(document).decode()
    spec, known = make_task(
        job=job, parent=job, ordinal=0, executor=EXECUTOR, arguments={"args": {"document": text}},
        n_outputs=2, needs=needs, mentions=Mentions.NOTHING, name=document.get("name", "")[:300],
        sees_errors=False,
    )  # fmt: skip
    name = document.get("name", "")[:JOB_NAME_MAX_LENGTH]
    # The log is kept, but not wanted: if it is lost, the task must not run again.
    described = JobSpec(job, name, False, True, True)
    return Submission(described, (AddTask(spec, known),), (spec.outputs[STATUS],), {})


def check_images(*, without_images: bool) -> None:
    """Refuse commands with container images, which TES requires, unless the images are ignored.

    Only `without_images` lets commands run, on the worker itself: the need `image` of tasks would
    run the program of the executor `tes` in the image, which needs Python and ciel there.
    """
    if without_images:
        return
    raise InvalidSubmissionError(
        "executors.image",
        "this cluster cannot run a command in a container image; start the master with the "
        "variable CIEL_TES_IMAGES=ignore to run commands on the workers without their images",
    )


def _needs(document: Mapping[str, Any]) -> Needs:
    resources = document.get("resources", {})
    return DEFAULT_NEEDS._replace(
        slots=max(1, resources.get("cpu_cores", 1)),
        memory_bytes=int(resources.get("ram_gb", 0) * GIGABYTE),
    )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise InvalidSubmissionError(where, "it must be a string without NUL")
    return value


def _path(value: Any, where: str) -> str:
    text = _text(value, where)
    if not text.startswith("/") or ".." in text.split("/"):
        raise InvalidSubmissionError(where, f"it must be an absolute path without '..': {text:.80}")
    return text


def _truth(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidSubmissionError(where, "it must be true or false")
    return value


def _number(kind: type, most: float) -> Check:
    def check(value: Any, where: str) -> Any:
        kinds = (int,) if kind is int else (int, float)
        if type(value) not in kinds or not 0 <= value <= most:
            named = "a whole number" if kind is int else "a number"
            raise InvalidSubmissionError(where, f"it must be {named} from 0 to {most:g}")
        return value

    return check


def _one_of(*words: str) -> Check:
    def check(value: Any, where: str) -> Any:
        if value not in words:
            raise InvalidSubmissionError(where, f"it must be one of {', '.join(words)}")
        return value

    return check


def _list(of: Check, least: int = 0) -> Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, list) or not least <= len(value) <= FILES_MAX:
            text = f"it must be a list of {least} to {FILES_MAX} elements"
            raise InvalidSubmissionError(where, text)
        return [of(item, f"{where}[{number}]") for number, item in enumerate(value)]

    return check


def _texts(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidSubmissionError(where, "it must be an object")
    return {
        _text(key, where): _text(item, f"{where}.{key:.40}")
        for key, item in value.items()
        if item is not None
    }


def _object(required: tuple[str, ...], **fields: Check) -> Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise InvalidSubmissionError(where, "it must be an object")
        at = "" if where == "task" else f"{where}."
        for name in required:
            if value.get(name) is None:
                raise InvalidSubmissionError(f"{at}{name}", "it is required")
        return {
            name: field(value[name], f"{at}{name}")
            for name, field in fields.items()
            if value.get(name) is not None
        }

    return check


def _input(value: Any, where: str) -> Any:
    found = _INPUT(value, where)
    if "content" not in found and "url" not in found:
        raise InvalidSubmissionError(f"{where}.url", "it is required without 'content'")
    return found


_KIND: Final = _one_of("FILE", "DIRECTORY")
_INPUT: Final = _object(
    ("path",), name=_text, description=_text, url=_text, path=_path, type=_KIND, content=_text,
    streamable=_truth,
)  # fmt: skip
_OUTPUT: Final = _object(
    ("path", "url"), name=_text, description=_text, url=_text, path=_path, path_prefix=_path,
    type=_KIND,
)  # fmt: skip
_EXECUTOR: Final = _object(
    ("image", "command"), image=_text, command=_list(_text, 1), workdir=_path, stdin=_path,
    stdout=_path, stderr=_path, env=_texts, ignore_error=_truth,
)  # fmt: skip
_RESOURCES: Final = _object(
    (), cpu_cores=_number(int, 1024), preemptible=_truth, ram_gb=_number(float, 1e9),
    disk_gb=_number(float, 1e9), zones=_list(_text), backend_parameters=_texts,
    backend_parameters_strict=_truth,
)  # fmt: skip
_TASK: Final = _object(
    ("executors",), name=_text, description=_text, inputs=_list(_input), outputs=_list(_OUTPUT),
    resources=_RESOURCES, executors=_list(_EXECUTOR, 1), volumes=_list(_path), tags=_texts,
)  # fmt: skip


def document_of(payload: bytes) -> dict[str, Any]:
    """Return the document in the arguments of a task."""
    document: dict[str, Any] = codec.decode(codec.decode(payload)["args"]["document"].encode())
    return document


# --- writing --------------------------------------------------------------------------------------


def rfc3339(at_s: float) -> str:
    """Write a time since the epoch as TES does."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def minimal(task_id: str, state: str) -> dict[str, Any]:
    """Return the view `MINIMAL`."""
    return {"id": task_id, "state": state}


def described(
    task_id: str,
    state: str,
    created_at_s: float,
    document: Mapping[str, Any],
    log: Mapping[str, Any] | None,
    *,
    is_full: bool,
) -> dict[str, Any]:
    """Return the view `BASIC` or `FULL`. `log`: the log of the task, None before its end."""
    found = {**document, **minimal(task_id, state), "creation_time": rfc3339(created_at_s)}
    logs = [dict(log)] if log is not None else []
    if not is_full:
        if "inputs" in document:
            found["inputs"] = [_without(each, "content") for each in document["inputs"]]
        logs = [
            {
                **_without(each, "system_logs"),
                "logs": [_without(entry, "stdout", "stderr") for entry in each["logs"]],
            }
            for each in logs
        ]
    return {**found, "logs": logs}


def system_log(text: str) -> dict[str, Any]:
    """Return the log of a task that the engine ended, or whose own log is lost."""
    return {"logs": [], "outputs": [], "system_logs": [text]}


def has_tags(document: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether a task has these tags; an empty value stands for any value."""
    tags = document.get("tags", {})
    return all(key in tags and value in ("", tags[key]) for key, value in wanted.items())


def _without(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}
