"""Tests `ciel submit` on a lasting cluster."""

import json
import os
import subprocess

import pytest

from ciel.cli.main import main
from ciel.client import Client
from ciel.client.jobs import arrays
from ciel.core.jobs import JobSummary
from ciel.testing.homes import HandCluster, Home, wait_for
from ciel.wire.descriptors import read_summary


@pytest.fixture
def shared(lasting_cluster: HandCluster) -> Home:
    """Return a home with a cluster of two workers, with a slot each."""
    return lasting_cluster.home


def last_job(home: Home) -> JobSummary:
    with Client(environ=home.environ) as client:
        return read_summary(client.ask("job", {"job": "last"})["summary"])


def object_count(home: Home) -> int:
    with Client(environ=home.environ) as client:
        return int(client.ask("status")["objects"])


def test_output_is_printed_in_order_however_long_elements_take(shared: Home) -> None:
    done = shared.run(
        "ciel", "submit", "--array", "1-24", "--", "sh", "-c", "sleep 0.0$((7 * {} % 5)); echo {}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(number) for number in range(1, 25)]


def test_a_line_runs_before_the_next_is_written(shared: Home) -> None:
    process = shared.start(
        "ciel", "submit", "--each-line", "-", "--", "echo", "got", "{}", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for line in ("one", "two", "three"):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"got {line}\n"
    process.stdin.write("unended")
    stdout, stderr = process.communicate(timeout=20)
    assert stdout == "got unended\n"
    assert process.returncode == 0, stderr


@pytest.mark.slow
def test_a_slow_element_does_not_delay_files_of_others(shared: Home) -> None:
    """The first element ends only when the files of all others exist: tasks prefetched by its
    worker are recalled.
    """
    out = shared.path / "outputs"
    command = f"if [ {{}} = 1 ]; then until [ -e {out}/go ]; do sleep 0.02; done; fi; echo {{}}"
    process = shared.start(
        "ciel", "submit", "--array", "1-20", "--out", str(out), "--", "sh", "-c", command
    )
    wait_for(lambda: len(list(out.glob("[0-9]*"))) == 19, "all other files")
    assert not (out / "1").exists()
    (out / "go").touch()
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 0, stderr
    assert stdout == ""
    assert sorted(path.name for path in out.iterdir()) == sorted(["go", *map(str, range(1, 21))])
    assert (out / "17").read_text() == "17\n"


def test_failed_elements_are_listed_in_order_and_their_output_is_printed(shared: Home) -> None:
    """Every third of 75 elements fails; only twenty failures are described."""
    command = "sleep 0.00$((7 * {} % 9)); echo {}; [ $(({} % 3)) != 0 ]"
    done = shared.run("ciel", "submit", "--array", "1-75", "--", "sh", "-c", command)
    assert done.returncode == 1
    assert done.stdout.split() == [str(number) for number in range(1, 76)]
    said = [line.split(": ")[1] for line in done.stderr.splitlines() if "element " in line]
    assert "25 of 75 elements failed:" in done.stderr
    assert said == [f"element {number}" for number in range(3, 61, 3)]
    number = last_job(shared).number
    assert f"and 5 more; ciel job info {number} shows them" in done.stderr


@pytest.mark.slow
def test_a_missing_file_that_exists_for_the_caller_is_explained(shared: Home) -> None:
    (shared.path / "here.txt").write_text("text\n")
    hint = (
        "ciel: here.txt is a file here, but the program did not run here: "
        "name it by its full path, or send it with --in\n"
    )
    given = ("ciel", "submit", "--scratch", "--", "cat", "here.txt")
    assert shared.run(*given).stderr.endswith(hint)
    lines = ("sh", "-c", "echo here.txt | ciel submit --cwd / --each-line - -- cat {}")
    assert shared.run(*lines).stderr.endswith(hint)
    sent = shared.run("ciel", "submit", "--in", "here.txt", "--", "cat", "here.txt")
    assert (sent.stdout, sent.stderr) == ("text\n", "")
    other = shared.run("ciel", "submit", "--in", "here.txt", "--", "cat", "here.txt", "absent")
    assert other.returncode == 1
    assert hint not in other.stderr


def test_json_contains_every_element_in_order_and_the_job(shared: Home) -> None:
    (shared.path / "words").write_text("b\na\nb\n")
    command = "[ {} = b ] && seq 3"
    done = shared.run("ciel", "submit", "--json", "--each-line", "words", "--", "sh", "-c", command)
    assert done.returncode == 1
    *rows, end = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["number"], row["element"], row["state"]) for row in rows] == [
        (1, "b", "done"),
        (2, "a", "failed"),
        (3, "b", "done"),
    ]
    assert rows[0]["output"] == "1\n2\n3\n"
    assert "exit status 1" in rows[1]["story"]
    assert end["job"]["state"] == "failed"
    assert end["job"]["counts"] == {"done": 2, "failed": 1}


def test_elements_are_the_names_of_their_tasks(shared: Home) -> None:
    done = shared.run("ciel", "submit", "--array", "17-19", "--", "true")
    assert done.returncode == 0, done.stderr
    with Client(environ=shared.environ) as client:
        task = client.ask("task", {"job": "last", "task": "18"})
    assert (task["name"], task["state"]) == ("18", "done")


def test_every_option_reaches_the_program(shared: Home) -> None:
    (shared.path / "data").write_text("sent along\n")
    done = shared.run(
        "ciel", "submit", "--in", "data", "--env", "A=1", "--env", "HOME", "--slots", "1",
        "--timeout", "10s", "--retries", "2", "--name", "the name", "--quiet", "--array", "5",
        "--", "sh", "-c", "cat data; echo $A $HOME $CIEL_INDEX $CIEL_ELEMENT $CIEL_SLOTS",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"sent along\n1 {shared.path} 5 5 1\n"
    assert done.stderr == ""
    with Client(environ=shared.environ) as client:
        task = client.ask("task", {"job": "last", "task": "5"})
        name = read_summary(client.ask("job", {"job": "last"})["summary"]).name
    assert name == "the name"
    assert (task["needs"]["timeout_s"], task["needs"]["retries"]) == (10, 2)


def test_a_failed_program_is_retried_as_often_as_requested(shared: Home) -> None:
    count = shared.path / "tried-so-often"
    command = f"echo x >> {count}; [ $(wc -l < {count}) = 2 ]"
    done = shared.run("ciel", "submit", "--retries", "1", "--", "sh", "-c", command)
    assert done.returncode == 0, done.stderr


def test_more_slots_than_any_worker_has_are_refused(shared: Home) -> None:
    done = shared.run("ciel", "submit", "--slots", "3", "--", "true")
    assert done.returncode == 1
    assert "the task needs 3 slots, and no worker has more than 1" in done.stderr


def test_a_detached_job_keeps_its_results(shared: Home) -> None:
    done = shared.run("ciel", "submit", "--detach", "--array", "1-300", "--", "echo", "{}")
    assert done.returncode == 0, done.stderr
    number = int(done.stdout)
    with Client(environ=shared.environ) as client:
        summary = read_summary(client.ask("job", {"job": number})["summary"])
        assert client.wait_for_job(summary.id, 20).state == "completed"
        page = client.ask("results", {"job": number, "first": 0})
    assert [name for name, _ in page["results"]] == [str(n) for n in range(1, 301)]


@pytest.mark.slow
def test_a_long_job_is_handed_over_and_leaves_little_behind(
    shared: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs in this process, where a job counts as long sooner."""
    monkeypatch.setattr(arrays, "KEPT_MAX", 300)
    monkeypatch.setenv("CIEL_ACCESS", shared.environ["CIEL_ACCESS"])
    before = object_count(shared)
    status = main(
        ["submit", "--quiet", "--array", "1-800", "--", "sh", "-c", "[ {} = 7 ] || echo {}"]
    )
    assert status == 0
    assert capfd.readouterr().out.split() == [str(n) for n in range(1, 801) if n != 7]
    wait_for(lambda: last_job(shared).handed_over == 800, "what the command said last")
    job = last_job(shared)
    assert (job.state, job.counts) == ("completed", {"done": 800})
    wait_for(lambda: object_count(shared) == before, "the removal of what was handed over")


def test_failures_of_a_handed_over_job_stay(
    shared: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arrays, "KEPT_MAX", 20)
    monkeypatch.setenv("CIEL_ACCESS", shared.environ["CIEL_ACCESS"])
    command = "echo {}; [ {} != 3 ]"
    assert main(["submit", "--quiet", "--array", "1-60", "--", "sh", "-c", command]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout.split() == [str(n) for n in range(1, 61)]
    assert "1 of 60 elements failed" in stderr
    wait_for(lambda: last_job(shared).handed_over == 59, "what the command said last")
    job = last_job(shared)
    assert (job.counts, job.wanted) == ({"done": 59, "failed": 1}, 1)


@pytest.mark.parametrize(
    "line, said",
    [(b"a\0\n", "line 2 contains"), (b"x" * 140_000, "line 2 is")],
)
def test_a_bad_line_ends_programs_of_earlier_lines(shared: Home, line: bytes, said: str) -> None:
    mark = shared.path / f"runs-{said.split()[-1]}"
    process = shared.start(
        "ciel", "submit", "--each-line", "-", "--", "sh", "-c", f"touch {mark}; sleep 444",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("first\n")
    process.stdin.flush()
    wait_for(mark.exists, "the first line's program")
    os.write(process.stdin.fileno(), line)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 2, stderr
    assert f"standard input {said}" in stderr
    assert last_job(shared).state == "cancelled"
    assert not any("sleep 444" in command for command in shared.processes().values())


def test_a_reader_that_closes_the_pipe_ends_the_job(shared: Home) -> None:
    command = "ciel submit --array 1-100000 -- echo {} | head -n 1"
    done = shared.run("bash", "-o", "pipefail", "-c", command)
    assert done.stdout == "1\n"
    assert done.returncode == 141, done.stderr
    assert last_job(shared).state == "cancelled"


def test_a_command_that_reads_lines_ends_when_its_job_is_cancelled(shared: Home) -> None:
    process = shared.start(
        "ciel", "submit", "--each-line", "-", "--", "cat", "-", "{}", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write("/dev/null\n")
    process.stdin.flush()
    wait_for(lambda: last_job(shared).counts == {"done": 1}, "the first line's end")
    with Client(environ=shared.environ) as client:
        client.cancel_job(last_job(shared).id, "enough of it")
    assert process.wait(20) == 4
    assert process.stderr is not None
    assert "enough of it" in process.stderr.read()
    process.communicate()


@pytest.mark.slow
def test_output_of_a_lost_worker_is_recomputed_in_order(
    home: Home, hand_cluster: HandCluster
) -> None:
    """Elements after the first one are done when the worker that holds them is killed."""
    place = home.path
    wait = f"echo $CIEL_WORKER > {place}/one; until [ -e {place}/go ]; do sleep 0.02; done"
    command = f"if [ {{}} = 1 ]; then {wait}; fi; yes {{}} | head -c 3000"
    process = home.start("ciel", "submit", "--array", "1-40", "--", "sh", "-c", command)
    wait_for((home.path / "one").exists, "the first element")
    wait_for(lambda: last_job(home).counts.get("done", 0) >= 10, "others on the other worker")
    first = (home.path / "one").read_text().strip()
    (other,) = [
        worker
        for number, worker in enumerate(hand_cluster.workers, 1)
        if f"worker {first} at" not in hand_cluster.log(f"worker{number}")
    ]
    other.kill()
    (home.path / "go").touch()
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    assert stdout == "".join((f"{n}\n" * 3000)[:3000] for n in range(1, 41))


@pytest.mark.slow
def test_every_line_is_printed_in_order_although_a_worker_is_killed(
    home: Home, hand_cluster: HandCluster
) -> None:
    """A small version of a test in tests/soak."""
    lines = [f"line {number}" for number in range(1000)]
    (home.path / "lines").write_text("\n".join(lines))
    process = home.start("ciel", "submit", "--each-line", "lines", "--", "echo", "{}")
    assert process.stdout is not None
    found = [process.stdout.readline() for _ in range(400)]
    hand_cluster.workers[0].kill()
    found += process.stdout.readlines()
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 0, stderr
    assert "".join(found) == "\n".join([*lines, ""])
