"""Tests executors through packages on a real cluster: what programs get, and their results."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from ciel.client import Client
from ciel.core.refs import locations_of
from ciel_tests.clusters.two_slots import TwoSlots

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
    """Run a package; return its result."""
    (cluster.home.path / "job.pack").write_text(json.dumps(package))
    done = cluster.run("run", "job.pack")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.requirement("CIB-2")
@pytest.mark.slow
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


@pytest.mark.slow
def test_a_fetched_url_is_read_by_its_reference(shared_cluster: TwoSlots) -> None:
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
    assert len(programs) == 1  # it is kept warm
    urls[1] += ".absent"
    (shared_cluster.home.path / "job.pack").write_text(json.dumps(package))
    done = shared_cluster.run("run", "job.pack")
    assert done.returncode == 1
    assert f"{urls[1]} could not be fetched: No such file or directory" in done.stderr


def test_a_program_looks_up_entries_in_a_package_of_any_size(shared_cluster: TwoSlots) -> None:
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


def test_a_package_may_declare_the_single_output_of_a_program(shared_cluster: TwoSlots) -> None:
    package = {
        "start": {
            "handler": "stdinout",
            "args": {"args": {"command_line": ["echo", 7], "stream_output": True}, "n_outputs": 1},
        },
        "result": [{"__decode_ref__": "json"}],
    }
    assert run(shared_cluster, package) == [7]


# --- options of programs --------------------------------------------------------------------------

WRITER = 'echo first; until [ -e "$0" ]; do sleep 0.01; done; sleep 0.05; echo second'
READER = 'read -r in <"$INPUT_FILES"; read -r out <"$OUTPUT_FILES"; exec <"$in" >"$out"; ' + (
    'read -r line; : >"$0"; echo "$line"; cat'
)
ONE_PIECE = 'read -r in <"$INPUT_FILES"; read -r out <"$OUTPUT_FILES"; : >"$0"; ' + (
    'exec dd bs=64k count=1 if="$in" of="$out" status=none'
)


def read_along(cluster: TwoSlots, script: str, **options: Any) -> tuple[bytes, str]:
    """Start a program that reads the output of another one, which waits for it; return the bytes
    that it read, and the job's log.
    """
    mark = str(cluster.home.path / f"{script[-5:].strip()}.mark")
    with Client(environ=cluster.home.environ) as client, client.job(keep=True) as job:
        line = ["sh", "-c", WRITER, mark]
        (made,) = job.add("stdinout", {"args": {"command_line": line, "pipe_output": True}})
        args = {"command_line": ["sh", "-c", script, mark], "inputs": [made], **options}
        (read,) = job.add("env", {"args": args})
        content = job.read(read, timeout_s=30)
    return content, cluster.run("job", "log", "last").stdout


def test_a_piped_output_is_read_while_it_is_written_and_waits_are_traced(
    shared_cluster: TwoSlots,
) -> None:
    content, log = read_along(shared_cluster, READER, debug_options=["trace_io"])
    assert content == b"first\nsecond\n"
    (traced,) = re.findall(r"trace_io: (\S+)", log)
    assert re.fullmatch(r"C0\.000,(I0\|\d+\.\d{3},C\d+\.\d{3},)+", traced)


def test_a_growing_input_is_fed_in_pieces_of_the_requested_size(
    shared_cluster: TwoSlots,
) -> None:
    content, _ = read_along(shared_cluster, ONE_PIECE, stream_chunk_size=1 << 20)
    assert content == b"first\nsecond\n", "in one piece, since it is smaller"


def test_an_input_may_become_a_sweetheart_of_the_worker_that_read_it(
    shared_cluster: TwoSlots,
) -> None:
    with Client(environ=shared_cluster.home.environ) as client, client.job() as job:
        sent = client.upload_content(b"x" * 5000, "what is sent")
        args = {"command_line": ["wc", "-c"], "inputs": [sent], "make_sweetheart": sent}
        (count,) = job.add("stdinout", {"args": args})
        assert job.read(count, timeout_s=30) == b"5000\n"
        (again,) = job.add("sync", {"args": {"inputs": [sent], "again": count}})
        listed = json.loads(job.read(again, timeout_s=30))
    (worker,) = locations_of(sent)
    assert listed == [{"__ref__": ["<3", sent.id, worker, 5000, [worker]]}]
