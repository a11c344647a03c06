from typing import Any

from ciel.cli.commands.task import render_explanation

TASK: dict[str, Any] = {
    "job": 3, "task": "t", "name": "7", "state": "done", "runs": False, "story": [],
    "why": ["it succeeded at attempt 1", "placed there since this worker has all inputs"],
}  # fmt: skip


def test_an_explanation_says_which_stores_hold_what_a_task_reads() -> None:
    inputs = [
        {"object": "a", "state": "there", "size_bytes": 5000, "at": ["here:1", "there:2"]},
        {"object": "b", "state": "there", "size_bytes": 5},  # in its reference
        {"object": "c", "state": "expected"},
    ]
    assert render_explanation({**TASK, "inputs": inputs}) == (
        "task 7 of job 3 is done\n"
        "why:\n  it succeeded at attempt 1\n  placed there since this worker has all inputs\n"
        "what it reads:\n  a: there, 5000 bytes, here:1 there:2"
    )
    assert "what it reads" not in render_explanation({**TASK, "inputs": inputs[1:]})
