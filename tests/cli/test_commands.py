"""Commands as they are typed, against real daemons."""

import json
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ciel.testing.homes import command_of, wait_for

CIEL = str(Path(sys.executable).with_name("ciel"))
EXAMPLES = Path(__file__).parents[2] / "examples"
WAIT_S = 20.0


class Shell:
    """Runs commands in a private home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "tmp").mkdir(parents=True)
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("CIEL_", "XDG_"))}
        inherited = ours | {k: v for k, v in os.environ.items() if k == "CIEL_PURE"}
        self.environ = inherited | {"HOME": str(home), "TMPDIR": str(home / "tmp")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [CIEL, *words], cwd=self.home, env=self.environ, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words: str, stdin: str = "") -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(stdin, timeout=30)
        return process.returncode, out, err

    def processes(self) -> list[str]:
        """List the command lines of processes that live in this home."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if (
                    entry.name.isdecimal()
                    and f"HOME={self.home}\0".encode() in (entry / "environ").read_bytes()
                ):
                    found.append(command_of(entry).rstrip())
            except OSError:
                continue
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "home")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A home in which a cluster is up."""
    shell = Shell(tmp_path_factory.mktemp("up") / "home")
    status, out, err = shell.run("up", "--workers", "2", "--listen", "127.0.0.1:0")
    assert status == 0, err
    assert out.startswith("http://127.0.0.1:")
    yield shell
    assert shell.run("down", "--force")[0] == 0
    assert shell.processes() == []
    assert list((shell.home / "tmp").iterdir()) == []


def eventually(condition: Callable[[], object]) -> bool:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


# --- submit ---------------------------------------------------------------------------------------


def test_output_comes_in_the_order_of_the_array(up: Shell) -> None:
    script = "sleep 0.0$((9 - 2 * {})); echo {} {#} $CIEL_INDEX $CIEL_ELEMENT"
    assert up.run("submit", "--array", "1-4", "--", "sh", "-c", script) == (
        0,
        "".join(f"{n} {n} {n} {n}\n" for n in range(1, 5)),
        "",
    )


def test_each_line_of_standard_input_is_an_element(up: Shell) -> None:
    words = ("submit", "--each-line", "-", "--", "echo", "<{}>", "{#}")
    assert up.run(*words, stdin="a b\n$(c)\n") == (0, "<a b> 1\n<$(c)> 2\n", "")


def test_outputs_go_to_files_of_their_number(up: Shell) -> None:
    words = ("submit", "--array", "8-9", "--out", "results", "--", "seq", "{}")
    assert up.run(*words) == (0, "", "")
    assert sorted(path.name for path in (up.home / "results").iterdir()) == ["8", "9"]
    assert (up.home / "results" / "8").read_text() == "".join(f"{n}\n" for n in range(1, 9))


def test_files_are_sent_along_and_variables_set(up: Shell) -> None:
    (up.home / "data").write_text("x" * 5000)
    script = 'wc -c <data; echo "$A"; pwd'
    status, out, _ = up.run("submit", "--in", "data", "--env", "A=b c", "--", "sh", "-c", script)
    assert status == 0
    size, value, directory = out.splitlines()
    assert (size, value) == ("5000", "b c")
    wait_for(lambda: not Path(directory).exists(), "the end of the private directory")


def test_failed_elements_are_listed_with_their_stories(up: Shell) -> None:
    script = "echo {}; echo why {} >&2; exit {}"
    status, out, err = up.run("submit", "--array", "0-2", "--", "sh", "-c", script)
    assert (status, out) == (1, "0\n1\n2\n")
    assert "ciel: 2 of 3 elements failed:\n" in err
    assert "element 1: " in err
    assert "exit status 2" in err
    assert "why 2" in err


@pytest.mark.parametrize(
    "words, said",
    [
        (["sh", "-c", "kill -SEGV $$"], "SIGSEGV"),
        (["sh", "-c", "exit 3"], "exit status 3"),
        (["no-such-program"], "'no-such-program' could not be started"),
        (["./no-such-program"], "home/no-such-program' could not be started"),
    ],
)
def test_how_a_program_ended_is_said(up: Shell, words: list[str], said: str) -> None:
    status, out, err = up.run("submit", "--", *words)
    assert (status, out) == (1, "")
    assert said in err


def test_json_tells_of_each_element_and_the_job(up: Shell) -> None:
    script = "echo out; exit {}"
    words = ("submit", "--json", "--array", "0-1", "--", "sh", "-c", script)
    status, out, err = up.run(*words)
    first, second, last = map(json.loads, out.splitlines())
    assert (status, err) == (1, "")
    assert (first["state"], first["output"], first["size_bytes"]) == ("done", "out\n", 4)
    assert (second["state"], second["element"]) == ("failed", "1")
    assert "exit status 1" in second["story"]
    assert last["job"]["state"] == "failed"


def test_an_array_of_nothing_is_done(up: Shell) -> None:
    assert up.run("submit", "--each-line", "-", "--", "echo")[:2] == (0, "")


def test_a_run_that_takes_too_long_is_ended(up: Shell) -> None:
    status, _, err = up.run("submit", "--timeout", "0.2s", "--", "sleep", "60")
    assert status == 1
    assert "0.2 s" in err


def test_a_reader_that_leaves_ends_it_quietly(up: Shell) -> None:
    command = f"{CIEL} submit --array 1-200 -- seq 20000 | head -1"
    result = subprocess.run(
        ["bash", "-c", command + "; echo ${PIPESTATUS[0]}"],
        env=up.environ, cwd=up.home, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (result.stdout, result.stderr) == ("1\n141\n", "")


def test_progress_is_drawn_on_a_terminal(up: Shell) -> None:
    ours, theirs = pty.openpty()
    command = [CIEL, "submit", "--array", "1-4", "--", "sleep", "0.3"]
    with subprocess.Popen(command, env=up.environ, cwd=up.home, stderr=theirs) as process:
        os.close(theirs)
        drawn = b""
        try:
            while data := os.read(ours, 4096):
                drawn += data
        except OSError:
            pass  # the end of a terminal
    os.close(ours)
    assert process.returncode == 0
    assert b"sleep: " in drawn
    assert b"running, 4 in all" in drawn
    assert b"\r\x1b[Kciel: sleep: " in drawn
    assert drawn.rstrip().endswith(b"s")


# --- jobs and status ------------------------------------------------------------------------------


def test_a_detached_job_goes_on_and_can_be_waited_for(up: Shell) -> None:
    status, out, err = up.run("submit", "--detach", "--", "sleep", "0.2")
    number = out.strip()
    assert (status, err) == (0, f"ciel: the job continues; ciel job wait {number}\n")
    assert up.run("job", "wait", number) == (0, "", "")
    assert f"job {number} " in up.run("job", "info", number)[1]
    assert " completed " in up.run("job", "list", "--limit", "1")[1]


def test_waiting_ends_as_the_job_did(up: Shell) -> None:
    up.run("submit", "--detach", "--", "false")
    assert up.run("job", "wait", "last")[0] == 1
    assert "exit status 1" in up.run("job", "info", "last")[1]


def test_a_job_is_cancelled_from_elsewhere(up: Shell) -> None:
    process = up.start("submit", "--", "sleep", "1000")
    assert process.stdin is not None
    process.stdin.close()  # which sleep could read
    process.stdin = None
    assert eventually(lambda: "sleep 1000" in up.processes())
    assert up.run("job", "wait", "last", "--timeout", "0.1s")[0] == 5
    status, _, err = up.run("job", "cancel", "last")
    assert status == 0
    assert err.endswith("is cancelled\n")
    assert "sleep 1000" not in up.processes()
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 4
    assert "is cancelled: cancelled by its user" in said
    assert up.run("job", "wait", "last")[0] == 4


def test_a_package_whose_job_is_cancelled_says_so(up: Shell) -> None:
    (up.home / "long.pack").write_text(
        '{"start": {"handler": "stdinout", "args": {"command_line": ["sleep", 1001]}}}'
    )
    process = up.start("run", "long.pack")
    assert eventually(lambda: "sleep 1001" in up.processes())
    assert up.run("job", "cancel", "last")[0] == 0
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 4


def test_an_unknown_job_is_said(up: Shell) -> None:
    status, _, err = up.run("job", "info", "999")
    assert status == 2
    assert err.startswith("ciel: no job 999")


def test_status_shows_the_workers(up: Shell) -> None:
    status, out, _ = up.run("status")
    assert status == 0
    assert "up for" in out
    assert out.count("127.0.0.1:") == 3
    facts = json.loads(up.run("status", "--json")[1])
    assert len(facts["workers"]) == 2
    assert up.run("status", "-m", facts["url"])[0] == 0


# --- packages -------------------------------------------------------------------------------------


def test_the_example_package_says_hello(up: Shell) -> None:
    assert up.run("run", str(EXAMPLES / "hello.pack")) == (0, '["Hello, world!\\n"]\n', "")


def test_a_package_brings_files_and_takes_arguments(up: Shell) -> None:
    (up.home / "numbers").write_text('{"a": [1, 2.5]}' + " " * 2000)
    (up.home / "job.pack").write_text(
        json.dumps(
            {
                "package": {"in": {"filename": {"__args__": 0}}},
                "start": {
                    "handler": "stdinout",
                    "args": {"command_line": ["cat"], "inputs": [{"__package__": "in"}]},
                },
                "result": [{"__decode_ref__": "json"}],
            }
        )
    )
    assert up.run("run", "job.pack", "numbers") == (0, '[{"a": [1, 2.5]}]\n', "")
    status, _, err = up.run("run", "job.pack", "nothing")
    assert (status, err) == (2, "ciel: job.pack:1: package.in: there is no file nothing\n")
    status, _, err = up.run("run", "job.pack")
    assert status == 2
    assert "job.pack:1: package.in.filename: argument 0 is missing" in err


@pytest.mark.parametrize("result", ['[{"__decode_ref__": "noop"}]', "null"])
def test_an_error_among_the_results_fails_the_job(up: Shell, result: str) -> None:
    (up.home / "bad.pack").write_text(
        '{"start": {"handler": "stdinout", "args": {"command_line": ["false"]}},'
        f' "result": {result}}}'
    )
    status, out, err = up.run("run", "bad.pack")
    assert (status, out) == (1, "")
    assert "false ended with exit status 1" in err


@pytest.mark.slow
def test_more_arguments_than_a_task_can_have_are_refused(up: Shell) -> None:
    args = {"command_line": ["echo", "x" * (33 << 20)]}
    (up.home / "long.pack").write_text(json.dumps({"start": {"handler": "stdinout", "args": args}}))
    status, out, err = up.run("run", "long.pack")
    assert (status, out) == (2, "")
    assert err.startswith("ciel: long.pack:1: start.args: too large for one task: ")


def test_a_broken_package_is_refused_with_its_line(shell: Shell) -> None:
    (shell.home / "p").write_text('{"start":\n  {\n')
    status, _, err = shell.run("run", "p")
    assert status == 2
    assert err == "ciel: p:2: not JSON: the text ends, but the { of line 2 is not closed\n"


def test_a_script_in_place_of_a_package_is_told_how_it_is_run_and_the_other_way(
    shell: Shell,
) -> None:
    (shell.home / "a.sw").write_text("return 1")
    status, _, err = shell.run("run", "a.sw")
    assert (status, err) == (
        2,
        "ciel: a.sw is not a package; it looks like a Skywriting script: "
        "run it with `sw-job a.sw`\n",
    )
    (shell.home / "a.pack").write_text('{"start": {"handler": "sync"}}')
    status, _, err = shell.run("sw", "a.pack")
    assert (status, err) == (
        2,
        "ciel: a.pack is not a Skywriting script; it looks like a package: run it with `ciel run "
        "a.pack`\n",
    )


def test_a_package_is_required_and_words_for_it_are_not(shell: Shell) -> None:
    status, _, err = shell.run("run")
    assert (status, err.partition(" (")[0]) == (
        2, "ciel run: the following arguments are required: PACKAGE",
    )  # fmt: skip


# --- without a cluster ----------------------------------------------------------------------------


def test_submit_starts_a_cluster_for_itself_and_leaves_only_logs(shell: Shell) -> None:
    status, out, err = shell.run("submit", "--workers", "2", "--", "echo", "hi")
    assert (status, out) == (0, "hi\n")
    assert err.startswith("ciel: no cluster is configured or running")
    assert err.count("\n") == 1
    assert shell.processes() == []
    assert list((shell.home / "tmp").iterdir()) == []
    (run,) = (shell.home / ".local/state/ciel/runs").iterdir()
    assert {path.name for path in run.iterdir()} >= {"master.log", "worker-1.log", "worker-2.log"}


def test_detaching_needs_a_cluster_that_stays(shell: Shell) -> None:
    assert shell.run("submit", "--detach", "--", "true") == (
        3,
        "",
        "ciel: no cluster is configured or running; `ciel up` starts one\n",
    )


def test_looking_needs_a_cluster(shell: Shell) -> None:
    for words in (["status"], ["job", "list"], ["down"]):
        status, out, err = shell.run(*words)
        assert (status, out, err.count("\n")) == (3, "", 1)


def test_a_taken_port_is_said(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, _, err = shell.run("up", "--listen", address)
    assert (status, err) == (
        3,
        f"ciel: {address} is taken by another program; name another address with --listen\n",
    )
