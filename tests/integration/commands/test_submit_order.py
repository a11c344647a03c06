"""Tests on a lasting cluster: what starts after what, what stops early, and job files."""

import json
from pathlib import Path

import pytest

from ciel.testing.homes import HandCluster, Home


@pytest.fixture
def shared(lasting_cluster: HandCluster) -> Home:
    """Return a home with a cluster of two workers, with a slot each."""
    return lasting_cluster.home


def waits_for(path: Path) -> list[str]:
    """Return a program that ends when a file exists."""
    return ["sh", "-c", f"until test -e '{path}'; do sleep 0.02; done"]


def test_a_detached_job_starts_after_the_last_one(shared: Home, tmp_path: Path) -> None:
    flag, made = tmp_path / "flag", tmp_path / "made"
    shared.run("ciel", "submit", "--detach", *waits_for(flag))
    follower = shared.run(
        "ciel", "submit", "--detach", "--after", "last", "--array", "1-2", "touch", f"{made}{{}}"
    )
    assert follower.returncode == 0, follower.stderr
    number = follower.stdout.strip()
    jobs = json.loads(shared.run("ciel", "job", "list", "--all", "--json").stdout)
    assert jobs[-1]["reason"] == f"waits for the end of job {int(number) - 1}"
    assert not Path(f"{made}1").exists()
    flag.touch()
    assert shared.run("ciel", "job", "wait", number).returncode == 0
    assert Path(f"{made}2").exists()


def test_a_job_after_a_failed_one_is_cancelled_and_says_why(shared: Home) -> None:
    number = shared.run("ciel", "submit", "--detach", "false").stdout.strip()
    refused = shared.run("ciel", "submit", "--after", number, "echo", "never")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert f"job {number}, which has to complete first, is failed" in refused.stderr
    allowed = shared.run("ciel", "submit", "--after-any", number, "echo", "always")
    assert (allowed.returncode, allowed.stdout) == (0, "always\n")


def test_a_job_file_runs_its_tasks_in_order(shared: Home, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("by me\n")
    (tmp_path / "jobs.toml").write_text(f"""
name = "survey"
env = {{ GREETING = "hello" }}

[[task]]
name = "report"
command = ["sh", "-c", "cat totals notes; echo $GREETING $NAME"]
files = {{ totals = "sum", notes = {{ path = "{tmp_path}/notes" }} }}
env = {{ NAME = "you" }}
after = "clean"

[[task]]
name = "count"
array = "1-3"
command = ["seq", "{{}}"]

[[task]]
name = "sum"
array = "1-3"
stdin = "count:{{#}}"
command = ["awk", "{{s += $1}} END {{print s}}"]

[[task]]
name = "clean"
command = ["echo", "clean"]
after = ["count", "sum:2"]
out = "{tmp_path}/out/{{#}}.txt"
""")
    done = shared.run("ciel", "submit", "--file", str(tmp_path / "jobs.toml"))
    assert (done.returncode, done.stdout) == (0, "1\n3\n6\nby me\nhello you\n"), done.stderr
    assert (tmp_path / "out/1.txt").read_text() == "clean\n"


@pytest.mark.slow
def test_a_failed_task_of_a_job_file_prevents_those_that_need_it(
    shared: Home, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text("""
[[task]]
name = "a"
array = "1-2"
command = ["sh", "-c", "test {} = 1"]
[[task]]
name = "b"
array = "1-2"
after = "a:{#}"
command = ["echo", "b{}"]
[[task]]
name = "c"
after = "a"
command = ["echo", "c"]
""")
    failed = shared.run("ciel", "submit", "--file", str(path))
    assert (failed.returncode, failed.stdout) == (1, "b1\n")
    assert "1 of 5 runs failed:" in failed.stderr
    assert "a:2: sh -c 'test 2 = 1' ended with exit status 1" in failed.stderr
    assert "2 runs did not end, since they need others" in failed.stderr
    lines = shared.run("ciel", "submit", "--file", str(path), "--json").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["state"] for row in rows[:-1]] == ["done", "failed", "done", "failed", "failed"]
    assert rows[3]["reason"] == "DEPENDENCY_FAILED"
    assert rows[-1]["job"]["state"] == "failed"


@pytest.mark.slow
def test_large_arrays_follow_each_other(shared: Home, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text("""
[[task]]
name = "a"
array = "1-1500"
command = ["true"]
[[task]]
name = "b"
array = "1-1500"
after = "a"
command = ["echo", "{}"]
""")
    done = shared.run("ciel", "submit", "--file", str(path), timeout_s=120)
    assert done.stdout.split() == [str(number) for number in range(1, 1501)], done.stderr


def test_a_job_stops_when_too_many_runs_failed(shared: Home) -> None:
    done = shared.run("ciel", "submit", "--array", "1-300", "--max-fails", "1", "-j", "1", "false")
    assert done.returncode == 1
    assert "2 of 2 elements failed" in done.stderr
    assert "stopped by --max-fails 1: not all elements ran" in done.stderr


@pytest.mark.slow
def test_a_detached_job_stops_when_too_many_runs_failed(shared: Home) -> None:
    number = shared.run(
        "ciel", "submit", "--detach", "--array", "1-300", "--max-fails", "1", "false"
    ).stdout.strip()
    waited = shared.run("ciel", "job", "wait", number)
    assert waited.returncode == 4
    assert "may (max-fails)" in waited.stderr


@pytest.mark.slow
def test_a_success_may_stop_the_others(shared: Home) -> None:
    program = ["sh", "-c", "test {} != 1 || sleep 600"]
    done = shared.run("ciel", "submit", "--halt", "now,success=1", "--array", "1-9", *program)
    assert done.returncode == 0, done.stderr
    assert "stopped by --halt now,success=1" in done.stderr


@pytest.mark.slow
def test_runs_that_were_started_end_before_a_soon_halt(shared: Home, tmp_path: Path) -> None:
    program = ["sh", "-c", f"echo {{}} >> {tmp_path}/ran; exit 1"]
    done = shared.run("ciel", "submit", "--halt", "soon,fail=10%", "--array", "1-50", *program)
    assert done.returncode == 1
    ran = len((tmp_path / "ran").read_text().split())
    assert 5 <= ran <= 20
    assert f"{ran} of {ran} elements failed" in done.stderr


@pytest.mark.slow
def test_a_log_lets_a_later_command_repeat_what_failed(shared: Home, tmp_path: Path) -> None:
    log, fixed = tmp_path / "log", tmp_path / "fixed"
    options = ["--array", "1-3", "--joblog", str(log)]
    program = ["sh", "-c", f"test {{}} != 2 || test -e {fixed} && echo {{}}"]
    assert shared.run("ciel", "submit", *options, *program).stdout == "1\n3\n"
    fixed.touch()
    again = shared.run("ciel", "submit", *options, "--resume-failed", *program)
    assert (again.returncode, again.stdout) == (0, "2\n")
    nothing = shared.run("ciel", "submit", *options, "--resume", *program)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert len(log.read_text().splitlines()) == 5


@pytest.mark.slow
def test_results_are_files_of_both_streams(shared: Home, tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("a,1\nb,2\n")
    program = ["sh", "-c", "echo out {1}; echo err {2} >&2; test {1} = a"]
    options = ["--each-line", str(tmp_path / "pairs"), "--colsep", ","]
    results = f"{tmp_path}/{{1}}/{{2}}.txt"
    done = shared.run("ciel", "submit", *options, "--results", results, *program)
    assert (done.returncode, done.stdout) == (1, "")
    assert (tmp_path / "a/1.txt").read_text() == "out a\n"
    assert (tmp_path / "a/1.txt.err").read_text() == "err 1\n"
    assert (tmp_path / "b/2.txt.failed").read_text() == "out b\n"
    assert (tmp_path / "b/2.txt.err").read_text() == "err 2\n"
