"""Tests `sw-job` and `ciel run` with scripts: their inputs, their output, and their ends."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciel.client import Client
from ciel.testing.homes import Home, wait_for
from ciel_tests.clusters.two_slots import TwoSlots

FOR_EVER = 'ignore = print("begun"); while (true) { x = 1; }'


class Cluster:
    """A cluster that runs scripts."""

    def __init__(self, slots: TwoSlots) -> None:
        self.home = slots.home
        self._slots = slots

    def write(self, text: str, name: str = "script.sw") -> str:
        (self.home.path / name).write_text(text)
        return name

    def run(self, script: str, *words: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
        """Run a script; return its status, output and standard error."""
        done = self.home.run("sw-job", *options, self.write(script), *words)
        return done.returncode, done.stdout, done.stderr

    def value(self, script: str, *words: str, options: tuple[str, ...] = ()) -> Any:
        """Run a script; return its value."""
        status, out, said = self.run(script, *words, options=options)
        assert (status, said) == (0, ""), said
        assert out.count("\n") == 1
        return json.loads(out)

    def ask(self, topic: str, argument: Any) -> Any:
        with Client(environ=self.home.environ) as client:
            return client.ask(topic, argument)

    def job_count(self) -> int:
        return len(self.ask("jobs", {"limit": 1000}))

    def scripts_running(self) -> bool:
        """Return whether a script is running, which uses CPU time."""
        return any(
            "ciel.executors.programs.skywriting" in line and _state(pid) == "R"
            for pid, line in self.home.processes().items()
        )


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.fixture(scope="module")
def cluster(shared_cluster: TwoSlots) -> Iterator[Cluster]:
    yield Cluster(shared_cluster)
    done = shared_cluster.submit("--slots", "2", "--timeout", "10s", "--", "echo", "free")
    assert (done.returncode, done.stdout, done.stderr) == (0, "free\n", "")


# --- inputs and output ----------------------------------------------------------------------------


def test_the_value_is_printed_as_one_line_of_json(cluster: Cluster) -> None:
    script = 'return {"a": [1, -2.5, true], "\u00fc": "\u2603 \\n \\"", "none": null};'
    status, out, said = cluster.run(script)
    assert (status, said) == (0, "")
    assert out == '{"a": [1, -2.5, true], "\u00fc": "\u2603 \\n \\"", "none": null}\n'


def test_words_after_the_script_are_its_arguments(cluster: Cluster) -> None:
    words = ["-E", "x", "--", "", "two words", "\u2603", "-"]
    assert cluster.value("return argv;", *words) == words
    assert cluster.value("return argv;") == []


def test_the_environment_contains_only_the_given_variables(cluster: Cluster) -> None:
    assert cluster.value("return env;") == {}
    given = ("-E", "A=1=2", "-E", "HOME", "-E", "A=3")
    assert cluster.value("return env;", options=given) == {"A": "3", "HOME": str(cluster.home.path)}


def test_the_whole_environment_is_sent_except_secrets(cluster: Cluster) -> None:
    cluster.home.environ["MY_PASSWORD"] = "hidden"
    try:
        found = cluster.value("return env;", options=("-e", "-E", "A=1"))
    finally:
        del cluster.home.environ["MY_PASSWORD"]
    found.pop("LC_CTYPE", None)  # Python sets it where it is missing
    assert found == cluster.home.environ | {"A": "1"}


def test_sent_files_are_read_by_their_keys(cluster: Cluster) -> None:
    cluster.write("some words\n", "short")
    cluster.write("x" * 5000, "long")
    script = 'return [read(package("a")), len(read(package("b"))), len(lines(package("a")))];'
    found = cluster.value(script, options=("-p", "a", "short", "-p", "b", "long"))
    assert found == ["some words\n", 5000, 1]


def test_spawned_functions_and_continuations_have_the_package_too(
    cluster: Cluster,
) -> None:
    cluster.write("7", "seven")
    script = """
        function g(x) { return x + *package("n"); }
        function f(x) { y = *spawn(g, [x]); return y + *package("n"); }
        return *spawn(f, [1]);
    """
    assert cluster.value(script, options=("-p", "n", "seven")) == 15


@pytest.mark.slow
def test_a_package_file_beside_the_script_lists_further_files(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.write(f'"{name}"', f"{name}.json")
    entries = {name: {"filename": f"{name}.json"} for name in ("a", "b")}
    pack = cluster.home.path / "script.pack"
    pack.write_text(json.dumps({"package": entries, "start": {"handler": "swi"}}))
    try:
        script = 'return [*package("a"), *package("b")];'
        assert cluster.value(script) == ["a", "b"]
        assert cluster.value(script, options=("-p", "b", "c.json")) == ["a", "c"]
        entries["b"]["filename"] = "absent"
        pack.write_text(json.dumps({"package": entries}))
        assert cluster.run(script) == (
            2, "", "ciel: script.pack:1: package.b: there is no file absent\n",
        )  # fmt: skip
    finally:
        pack.unlink()


def test_a_script_may_be_read_from_standard_input(cluster: Cluster) -> None:
    done = subprocess.run(
        ["sw-job", "-", "a", "b"], env=cluster.home.environ, cwd=cluster.home.path,
        input=b"return [len(argv), argv[1]];", capture_output=True, timeout=40, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b'[2, "b"]\n', b"")


def test_scripts_and_values_may_be_longer_than_inline_values(cluster: Cluster) -> None:
    script = "x = [" + ", ".join(map(str, range(5000))) + "];\nreturn x;"
    assert cluster.value(script) == [*range(5000)]


def test_functions_and_programs_become_tasks(cluster: Cluster) -> None:
    script = """
        function fib(n) {
            if (n < 2) { return n; }
            return *spawn(fib, [n - 1]) + *spawn(fib, [n - 2]);
        }
        out = spawn_exec("stdinout", {"command_line": ["echo", "30"], "inputs": []}, 1);
        return *spawn(fib, [5]) + *out[0];
    """
    assert cluster.value(script) == 35


def test_a_reference_in_the_value_is_shown_as_one(cluster: Cluster) -> None:
    (found,) = cluster.value("function f() { return 1; } return [spawn(f, [])];")
    tag, *_ = found["__ref__"]
    assert tag in ("f2", "c2", "<3", "val")


def test_ciel_sw_runs_a_script_like_sw_job(cluster: Cluster) -> None:
    script = cluster.write("return [env, argv];")
    done = cluster.home.run("ciel", "sw", "-E", "A=1", "--", script, "-E", "B=2")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [{"A": "1"}, ["-E", "B=2"]]


# --- jobs of scripts ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_script_is_one_task_of_a_job_that_has_its_name(cluster: Cluster) -> None:
    assert cluster.value("return 17;", options=("-i", "seventeen")) == 17
    (job,) = json.loads(cluster.home.run("ciel", "job", "list", "--limit", "1", "--json").stdout)
    assert (job["name"], job["state"], job["counts"]) == ("seventeen", "completed", {"done": 1})
    assert cluster.home.run("ciel", "job", "output", "last").stdout == "17"
    (task,) = json.loads(cluster.home.run("ciel", "task", "list", "last", "--json").stdout)
    assert (task["name"], task["executor"]) == ("script.sw", "swi")
    assert cluster.value("return 17;") == 17
    assert cluster.ask("job", {"job": "last"})["summary"][2] == "script.sw"


@pytest.mark.slow
def test_output_of_a_script_is_in_the_log_of_its_job_and_shown_with_v(cluster: Cluster) -> None:
    script = 'ignore = print("one"); x = print([1, 2]); return 3;'
    assert cluster.run(script) == (0, "3\n", "")
    log = cluster.home.run("ciel", "job", "log", "last").stdout
    assert [line.partition("] ")[2] for line in log.splitlines()] == ["one", "[1, 2]"]
    status, out, said = cluster.run(script, options=("-v",))
    assert (status, out) == (0, "3\n")
    assert [line.partition("] ")[2] for line in said.splitlines()] == ["one", "[1, 2]"]


def test_a_detached_script_goes_on_and_its_value_can_be_read_later(cluster: Cluster) -> None:
    status, out, said = cluster.run("return [argv];", "a", options=("--detach",))
    assert (status, said) == (0, f"ciel: the job continues; ciel job wait {out.strip()}\n")
    assert cluster.home.run("ciel", "job", "output", out.strip()).stdout == '[["a"]]'
    done = cluster.home.run("ciel", "sw", "--detach")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a prompt cannot be detached" in done.stderr


def test_progress_is_drawn_on_a_terminal(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    script = cluster.write(
        'x = *spawn_exec("stdinout", {"command_line": ["sh", "-c", "sleep 0.5; echo 1"]}, 1)[0];'
        "return x;"
    )
    with subprocess.Popen(
        ["sw-job", script], env=cluster.home.environ, cwd=cluster.home.path,
        stdout=subprocess.PIPE, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        drawn = b""
        try:
            while chunk := os.read(ours, 4096):
                drawn += chunk
        except OSError:
            pass  # the end of a terminal
        os.close(ours)
        assert process.stdout is not None
        assert process.stdout.read() == b"1\n"
    assert process.returncode == 0
    assert b"script.sw: " in drawn
    assert b"so far" in drawn
    assert drawn.endswith(b"\r\n")  # the summary
    assert b" done in " in drawn


# --- errors ---------------------------------------------------------------------------------------


def test_a_script_with_errors_is_refused_with_all_of_them_before_anything_is_submitted(
    cluster: Cluster,
) -> None:
    before = cluster.job_count()
    status, out, said = cluster.run("x = 1 +;\nreturn 2;\ny = (3;\n")
    assert (status, out) == (2, "")
    assert "  script.sw, line 1, column 8\n    x = 1 +;\n           ^\n" in said
    assert "  script.sw, line 3, column 7\n" in said
    assert said.endswith("ciel: script.sw: 2 errors, so nothing was run\n")
    assert cluster.job_count() == before


@pytest.mark.parametrize("content", [b"", b"\n\n", b"// nothing\n"])
def test_an_empty_script_is_refused(cluster: Cluster, content: bytes) -> None:
    (cluster.home.path / "empty.sw").write_bytes(content)
    done = cluster.home.run("sw-job", "empty.sw")
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert "empty.sw" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_is_too_long_is_refused(cluster: Cluster) -> None:
    (cluster.home.path / "long.sw").write_text(f"return 1;{' ' * (20 << 20)}")
    done = cluster.home.run("sw-job", "long.sw")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ciel: long.sw: longer than 16 MiB, the limit for scripts\n"


def test_a_run_time_error_is_reported_with_its_position_and_calls(cluster: Cluster) -> None:
    script = "function f(x) {\n  return x + missing;\n}\ny = f(1);\nreturn y;\n"
    status, out, said = cluster.run(script)
    assert (status, out) == (1, "")
    assert 'Tried to read identifier "missing", not found' in said
    assert "script.sw, line 2, column 14\n    " in said
    assert "    return x + missing;\n" in said
    assert "in function f, called from script.sw, line 4" in said
    assert "Traceback" not in said


def test_a_script_without_a_value_is_reported(cluster: Cluster) -> None:
    status, out, said = cluster.run("x = 1;")
    assert (status, out) == (1, "")
    assert "return" in said
    assert "Traceback" not in said


def test_a_failed_child_is_reported_with_its_own_error(cluster: Cluster) -> None:
    script = (
        'x = spawn_exec("stdinout", {"command_line": ["sh", "-c", "echo why >&2; exit 3"]}, 1);\n'
        "return *x[0];\n"
    )
    status, out, said = cluster.run(script)
    assert (status, out) == (1, "")
    assert "exit status 3" in said
    assert "why" in said
    assert "script.sw, line 2" in said


def test_ctrl_c_ends_the_script_and_its_tasks(cluster: Cluster) -> None:
    process = cluster.home.start("sw-job", cluster.write(FOR_EVER))
    wait_for(cluster.scripts_running, "the script")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "cancelling job" in said
    assert not cluster.scripts_running()
    (job,) = json.loads(cluster.home.run("ciel", "job", "list", "--limit", "1", "--json").stdout)
    assert job["state"] == "cancelled"


def test_a_script_cancelled_by_another_command_is_reported(cluster: Cluster) -> None:
    process = cluster.home.start("sw-job", cluster.write(FOR_EVER))
    wait_for(cluster.scripts_running, "the script")
    assert cluster.home.run("ciel", "job", "cancel", "last").returncode == 0
    out, said = process.communicate(timeout=20)
    assert (process.returncode, out) == (4, "")
    assert "cancelled" in said


# --- packages -------------------------------------------------------------------------------------


def test_a_package_may_start_with_a_script(cluster: Cluster) -> None:
    cluster.write('return [env, argv, *package("data")];', "job.sw")
    cluster.write("[1, 2]", "data.json")
    package = {
        "package": {"script": {"filename": "job.sw"}, "data": {"filename": "data.json"}},
        "start": {
            "handler": "swi",
            "args": {
                "sw_file_ref": {"__package__": "script"},
                "start_env": {
                    "N": {"__args__": 0, "default": "10"},
                    "H": {"__env__": "HOME"},
                },
                "start_args": ["a", {"__args__": 1, "default": "b"}],
            },
        },
        "result": [{"__decode_ref__": "json"}],
    }
    cluster.write(json.dumps(package), "job.pack")
    home = str(cluster.home.path)
    for words, value in (
        (["7", "c"], [{"N": "7", "H": home}, ["a", "c"], [1, 2]]),
        ([], [{"N": "10", "H": home}, ["a", "b"], [1, 2]]),
    ):
        done = cluster.home.run("ciel", "run", "job.pack", *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout) == [value]


@pytest.mark.parametrize(
    "script, said",
    [
        ("return 1 +;", "line 1, column 11"),
        ("x = 1;", "return"),
        ("return [1][2];", "line 1"),
    ],
)
def test_a_package_whose_script_fails_reports_why(cluster: Cluster, script: str, said: str) -> None:
    cluster.write(script, "bad.sw")
    start = {"handler": "swi", "args": {"sw_file_ref": {"__package__": "s"}}}
    package = {"package": {"s": {"filename": "bad.sw"}}, "start": start}
    cluster.write(json.dumps(package), "bad.pack")
    done = cluster.home.run("ciel", "run", "bad.pack")
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# --- without a cluster ----------------------------------------------------------------------------


@pytest.mark.slow
def test_without_a_cluster_the_command_starts_its_own_and_leaves_nothing(home: Home) -> None:
    (home.path / "hello.sw").write_text('return "hello";')
    done = home.run("sw-job", "hello.sw")
    assert (done.returncode, done.stdout) == (0, '"hello"\n')
    assert done.stderr.startswith(
        "ciel: no cluster is configured or running, so this command starts one: "
    )
    home.expect_nothing_left()


@pytest.mark.slow
def test_ctrl_c_ends_the_commands_own_cluster_with_its_script(home: Home) -> None:
    (home.path / "script.sw").write_text(FOR_EVER)
    process = home.start("sw-job", "-v", "script.sw")
    assert process.stderr is not None
    line = ""
    while "begun" not in line:
        line = process.stderr.readline()
        assert line, "it ended without a word"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    home.expect_nothing_left()
