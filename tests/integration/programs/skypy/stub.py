"""Stands in for the stub of SkyPy: runs a function of a script, but leaves off first, so that a
continuation ends it.
"""

import json

from ciel.executors.sdk import ciel_task


def run(task: ciel_task.Task) -> None:
    """Run a task, the first or what it left."""
    told = task.private
    if told.get("coro_ref") is None:
        left = task.allocate("coro")
        coro = task.publish(left, json.dumps([told["entry_point"]]).encode())
        task.tail_spawn(
            "skypy", pyfile_ref=told["py_ref"], coro_ref=coro, export_json=told["export_json"],
            entry_args=told["entry_args"], n_extra_outputs=len(told["extra_outputs"]),
            extra_dependencies=told["entry_args"],
        )  # fmt: skip
        return
    names: dict[str, object] = {}
    exec(task.read(told["py_ref"]), names)
    (entry,) = json.loads(task.read(told["coro_ref"]))
    function = names[entry]
    assert callable(function)
    result = function(*[task.read(ref).decode() for ref in told["entry_args"]])
    again = task.open_output(told["ret_output"])
    again.write(b"a slip")
    again.roll_back()
    task.publish(told["ret_output"], json.dumps(result).encode())
    said = f"continued: {told['is_continuation']}, extra: {told['extra_outputs']}"
    task.publish(told["extra_outputs"][0], said.encode())


ciel_task.serve(run)
