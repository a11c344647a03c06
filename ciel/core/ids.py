"""Names of jobs, tasks and objects: their grammar, and how the names of children are derived.

Ids are plain text, unique in the cluster. They are never trusted as paths (storage escapes them),
and every id from another process passes `check_id` once, when it is decoded. Names are
deterministic so that a task which runs again the same way spawns the same children (CIB-1).
"""

from __future__ import annotations

import re
import string
from hashlib import blake2b
from typing import NewType

from ciel.core.errors import InvalidIdError

JobId = NewType("JobId", str)
TaskId = NewType("TaskId", str)
ObjectId = NewType("ObjectId", str)

ID_MAX_LENGTH = 128
_ORDINAL_DIGITS = 15
"""How many hexadecimal digits of a digest form an ordinal: 60 bits, which every JSON parser reads
as an integer."""
UPLOAD_PREFIX = "upload:"
"""The prefix of the ids of uploaded objects."""
_IN_IDS = (string.ascii_letters + string.digits + "_:.-").encode()
_NOT_FIRST = ":.-"
_OUTPUT = re.compile(
    r".+:(out:\d+|job_output|[0-9a-f]{32}:\d+)|(root:.+|[0-9a-f]{32}):.+:\d+", re.ASCII
)


def check_id(text: object) -> str:
    """Return the text if it is an id; raise InvalidIdError otherwise.

    An id has 1 to 128 characters of `A-Z a-z 0-9 _ : . -`. The first is a letter, a digit or `_`.
    """
    if not isinstance(text, str):
        raise InvalidIdError(text, "it is not text")
    if not text:
        raise InvalidIdError(text, "it is empty")
    if len(text) > ID_MAX_LENGTH:
        raise InvalidIdError(text, f"it has {len(text)} characters, {ID_MAX_LENGTH} are allowed")
    if text[0] in _NOT_FIRST:
        raise InvalidIdError(text, f"it begins with {text[0]!r}")
    # Each task has several ids, and this takes half the time of a regular expression.
    is_plain = text.isascii() and (text.isalnum() or not text.encode().translate(None, _IN_IDS))
    if not is_plain:
        raise InvalidIdError(text, "only letters, digits and _ : . - are allowed")
    return text


def child_id(parent: str, ordinal: int, digest: str) -> TaskId:
    """Name the `ordinal`-th task that `parent` (a task, or an open job) creates.

    The name is BLAKE2b-128 over the parent, the ordinal and the digest of the executor and its
    arguments (`naming.arguments_digest`), separated by bytes that none of them can contain.
    """
    text = f"{parent}\n{ordinal}\n{digest}"
    return TaskId(blake2b(text.encode(), digest_size=16).hexdigest())


def content_ordinal(digest: str, twin: int) -> int:
    """Derive the ordinal of a child from its digest.

    The child's name then does not depend on the order in which its parent creates children. `twin`:
    the number of children with the same digest that the parent created before.
    """
    return int(digest[:_ORDINAL_DIGITS], 16) + twin


def root_task_id(job: str) -> TaskId:
    """Name the first task of a job that starts from a package."""
    return TaskId(f"root:{job}")


def is_output(object_id: str) -> bool:
    """Whether an id has the form of an output of a task or of a job.

    The output of a task may be declared, undeclared or memoised.
    """
    return _OUTPUT.fullmatch(object_id) is not None


def attached_process_id(job: str) -> ObjectId:
    """Name the attached process of a job, in which its root task continues."""
    return ObjectId(f"process:{job}")


def job_output_id(job: str) -> ObjectId:
    """Name the object that is the result of a job that starts from a package."""
    return ObjectId(f"{job}:job_output")


def output_ids(task: str, count: int) -> tuple[ObjectId, ...]:
    """Name a task's outputs as `proc` does: `<task>:out:<i>`."""
    if count == 1:
        return (ObjectId(f"{task}:out:0"),)
    return tuple([ObjectId(f"{task}:out:{i}") for i in range(count)])
