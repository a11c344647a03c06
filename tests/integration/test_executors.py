"""Executors by their packages, on a real cluster: what programs get, and what becomes of it."""

from __future__ import annotations

import json
import sys
from typing import Any

from ciel.testing.two_slots import TwoSlots

SIZES = """
paste -d ' ' "$INPUT_FILES" "$OUTPUT_FILES" | while read -r input output; do
    wc -c < "$input" > "$output"
done
echo "$GREETING from $0"
"""
LOOK_UP = f"""#!{sys.executable}
from ciel.executors.sdk import ciel_task

def run(task):
    found = [task.package(key) for key in ("part17", "absent")]
    task.publish(0, task.read(found[0]) + repr(found[1]).encode())

ciel_task.serve(run)
"""


def run(cluster: TwoSlots, package: dict[str, Any]) -> Any:
    """Run a package; its result."""
    (cluster.home.path / "job.pack").write_text(json.dumps(package))
    done = cluster.run("run", "job.pack")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_env_names_its_inputs_and_outputs_in_files(shared_cluster: TwoSlots) -> None:
    (shared_cluster.home.path / "large").write_bytes(b"x" * 5000)
    (shared_cluster.home.path / "small").write_bytes(b"x" * 5)
    for name in ("env", "environ"):
        args = {
            "command_line": ["sh", "-c", SIZES, "env.sh"],
            "inputs": [{"__package__": "large"}, {"__package__": "small"}],
            "env": {"GREETING": f"hello by {name}"},
        }
        package = {
            "package": {"large": {"filename": "large"}, "small": {"filename": "small"}},
            "start": {"handler": name, "args": {"args": args, "n_outputs": 2}},
            "result": [{"__decode_ref__": "json"}, {"__decode_ref__": "json"}],
        }
        assert run(shared_cluster, package) == [5000, 5]
        assert f"hello by {name} from env.sh" in shared_cluster.run("job", "log", "last").stdout


def test_what_is_grabbed_is_read_by_its_reference(shared_cluster: TwoSlots) -> None:
    contents = ["first", "second" * 1000]
    for number, content in enumerate(contents):
        (shared_cluster.home.path / f"file{number}").write_text(content)
    urls = [(shared_cluster.home.path / f"file{number}").as_uri() for number in range(2)]
    template = {"__decode_ref__": "json", "value": {"__decode_ref__": "noop"}}
    package = {
        "start": {"handler": "grab", "args": {"urls": urls}},
        "result": [template, template],
    }
    assert run(shared_cluster, package) == contents
    assert run(shared_cluster, package) == contents
    programs = [line for line in shared_cluster.home.processes().values() if "grab" in line]
    assert len(programs) == 1  # which is kept warm
    urls[1] += ".absent"
    (shared_cluster.home.path / "job.pack").write_text(json.dumps(package))
    done = shared_cluster.run("run", "job.pack")
    assert done.returncode == 1
    assert f"{urls[1]} could not be fetched: No such file or directory" in done.stderr


def test_a_program_looks_things_up_in_a_package_of_any_size(shared_cluster: TwoSlots) -> None:
    names = [f"part{number}" for number in range(30)]
    for name in names:
        (shared_cluster.home.path / name).write_text(f"I am {name}, not ")
    package = {
        "package": {name: {"filename": name} for name in names},
        "start": {
            "handler": "proc",
            "args": {"command": shared_cluster.add_program("look-up", LOOK_UP)},
        },
        "result": [{"__decode_ref__": "noop"}],
    }
    assert run(shared_cluster, package) == ["I am part17, not None"]


def test_a_package_may_say_that_a_program_has_one_output(shared_cluster: TwoSlots) -> None:
    package = {
        "start": {
            "handler": "stdinout",
            "args": {"args": {"command_line": ["echo", 7], "stream_output": True}, "n_outputs": 1},
        },
        "result": [{"__decode_ref__": "json"}],
    }
    assert run(shared_cluster, package) == [7]
