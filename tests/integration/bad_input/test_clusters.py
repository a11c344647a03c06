"""Tests clusters that do not exist, have ended, or lack a resource: each gives one sentence and the
right exit status.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from ciel.access import access_file
from ciel.access.access_file import AccessFile, process_start
from ciel.access.keys import Key
from ciel.access.paths import host_name
from ciel.access.tickets import make_ticket
from ciel.testing.homes import Home, wait_for
from ciel_tests.clusters.mounts import on_mount

EXAMPLE: Final = str(Path(__file__).parents[3] / "examples" / "hello.pack")
KEY: Final = Key(bytes(range(32)))
SHUTDOWN: Final = "/control/shutdown"


Typed = Callable[..., tuple[int, str, str]]


def run(home: Home, *argv: str) -> tuple[int, str, str]:
    """Run a command; return its status and output, without details that differ between runs."""
    done = home.run(*argv)
    return done.returncode, plain(home, done.stdout), plain(home, done.stderr)


def plain(home: Home, text: str) -> str:
    text = text.replace(str(home.path), "HOME").replace(f"@{host_name()}", "")
    text = re.sub(r"\b(127\.0\.0\.1:|localhost_)\d+", r"\1PORT", text)
    text = re.sub(r"\bprocess \d+", "process PID", text)
    return re.sub(r"runs/[-0-9T.]+", "runs/TIME", text)


def current(home: Home) -> Path:
    return home.path / "state" / "ciel" / f"current@{host_name()}"


UP: Final = (
    "ciel: up at http://127.0.0.1:PORT: 1 worker with 1 slot; "
    "logs in HOME/state/ciel/localhost_PORT\n"
)
UP_COMMAND: Final = ("ciel", "up", "--slots", "1", "--listen", "127.0.0.1:0")
NONE_UP: Final = "ciel: no cluster of `ciel up` is running on this host\n"
INTERRUPTED: Final = (
    "the cluster at http://127.0.0.1:PORT was interrupted "
    "(process PID has ended; logs in HOME/state/ciel/localhost_PORT)"
)
ENDED: Final = "(process PID has ended)\n"


# --- up, down and interruptions -------------------------------------------------------------------


@pytest.mark.slow
def test_up_and_down_may_be_repeated(home: Home) -> None:
    assert run(home, "ciel", "down") == (3, "", NONE_UP)
    assert run(home, *UP_COMMAND) == (0, "http://127.0.0.1:PORT\n", UP)
    assert run(home, *UP_COMMAND) == (
        0,
        "http://127.0.0.1:PORT\n",
        "ciel: already up at http://127.0.0.1:PORT; `ciel down` ends it\n",
    )
    assert run(home, "ciel", "down") == (
        0, "", "ciel: the cluster at http://127.0.0.1:PORT is down\n",
    )  # fmt: skip
    assert run(home, "ciel", "down") == (3, "", NONE_UP)
    wait_for(lambda: not home.processes(), "its end")
    assert not list(home.tmp.iterdir())


@pytest.mark.slow
def test_every_command_reports_a_cluster_that_was_killed(home: Home) -> None:
    assert run(home, *UP_COMMAND)[0] == 0
    kill_owner(home)
    for words in (["status"], ["job", "list"], ["submit", "--detach", "--", "true"]):
        said = f"ciel: {INTERRUPTED}; `ciel up` continues it\n"
        assert run(home, "ciel", *words) == (3, "", said)
    own = (
        "ciel: no cluster is configured or running, so this command starts one: 1 worker with N; "
        "logs in HOME/state/ciel/runs/TIME\n"
    )
    for argv, out in (
        (["ciel", "submit", "--", "echo", "hi"], "hi\n"),
        (["ciel", "run", EXAMPLE], '["Hello, world!\\n"]\n'),
    ):
        status, printed, said = run(home, *argv)
        said = re.sub(r"with \d+ slots?", "with N", said)
        assert (status, printed, said) == (
            0,
            out,
            f"ciel: {INTERRUPTED}; `ciel up` continues it\n{own}",
        )
    assert run(home, *UP_COMMAND, "--fresh") == (
        0,
        "http://127.0.0.1:PORT\n",
        f"ciel: the last cluster, at http://127.0.0.1:PORT, was interrupted {ENDED}{UP}",
    )
    kill_owner(home)
    assert run(home, "ciel", "down") == (
        0, "", f"ciel: the cluster at http://127.0.0.1:PORT was interrupted {ENDED}",
    )  # fmt: skip
    assert run(home, "ciel", "down") == (3, "", NONE_UP)
    assert not list(home.tmp.iterdir())
    assert not [*current(home).parent.glob("localhost@*/journal")]


@pytest.mark.slow
def test_a_cluster_shut_down_over_http_has_not_crashed(home: Home) -> None:
    assert run(home, *UP_COMMAND)[0] == 0
    found = access_file.read(current(home))
    netloc = found.url.removeprefix("http://")
    ticket = make_ticket(found.key, "POST", netloc, SHUTDOWN, time.time())
    request = Request(found.url + SHUTDOWN, b"", {"Authorization": ticket}, method="POST")
    with urlopen(request) as answer:
        assert answer.read() == b"true\n"
    wait_for(lambda: not home.processes(), "its end")
    assert run(home, "ciel", "status") == (
        3, "", "ciel: no cluster is configured or running; `ciel up` starts one\n",
    )  # fmt: skip
    assert run(home, "ciel", "down") == (3, "", NONE_UP)
    assert [path.name[:10] for path in home.tmp.iterdir()] == ["ciel-work-"]  # for the next `up`


def kill_owner(home: Home) -> None:
    """Kill the process that owns the cluster; all others end with it."""
    os.kill(access_file.read(current(home)).pid, signal.SIGKILL)
    wait_for(lambda: not home.processes(), "the end of all that belonged to it")


def test_a_process_that_reuses_the_id_of_a_dead_master_is_not_killed(home: Home) -> None:
    """The access file names the process of this test, which started at another time."""
    path = current(home).parent / f"localhost@{host_name()}_8000" / "access.json"
    start = (process_start(os.getpid()) or 0) + 1
    AccessFile("http://127.0.0.1:8000", "unix:@gone", "c", KEY, os.getpid(), start).write(path)
    current(home).symlink_to(path)
    said = f"ciel: {INTERRUPTED}; `ciel up` continues it\n"
    assert run(home, "ciel", "status") == (3, "", said)
    assert run(home, "ciel", "down") == (
        0, "", f"ciel: the cluster at http://127.0.0.1:PORT was interrupted {ENDED}",
    )  # fmt: skip


UPS: Final = {
    "no address": (["--listen", "x:y"], "--listen: 'x:y' is not an address: expected HOST:PORT"),
    "no port": (["--listen", "[::1]:"], "--listen: '[::1]:' is not an address: expected HOST:PORT"),
    "a blank": (["--listen", " "], "--listen: ' ' is not an address: expected HOST:PORT"),
    "another host": (
        ["--listen", "192.0.2.1:1"],
        "--listen 192.0.2.1:1: a cluster of `ciel up` serves this computer only; "
        "start ciel-master and ciel-worker for other hosts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words, said", UPS.values(), ids=UPS)
def test_up_reports_an_address_that_it_cannot_listen_on(
    home: Home, typed: Typed, words: list[str], said: str
) -> None:
    assert typed(home, "up", *words) == (2, "", f"ciel: {said}\n")


STORES: Final = {
    "shm:speed": "'shm:speed': 'speed' is not option=value",
    "scc:core=1": "worker-1 could not start: 'core=1': the image has cores=1, numbered from 0; "
    "give its first worker more cores",
    "disk:capacity=x": "'x': not a size; write a size such as 8GiB, 512MiB or 1000000",
    "shm:speed=1": "'shm': unknown option 'speed'; "
    "the options are: capacity, instance, spill, arena",
    "tape:speed=1": "store 'tape': not installed (there is: disk, scc, shm)",
}


@pytest.mark.slow
def test_up_reports_an_invalid_store_only_once(home: Home) -> None:
    """Each start reports only its own error, and no earlier ones."""
    for spec, said in STORES.items():
        assert run(home, "ciel", "up", "--listen", "127.0.0.1:0", "--store", spec) == (
            2, "", f"ciel: {said}\n",
        )  # fmt: skip
    assert not home.processes()


# --- access files ---------------------------------------------------------------------------------

GOOD: Final[dict[str, Any]] = {
    "version": 1, "url": "http://127.0.0.1:1", "control": "127.0.0.1:1", "cluster_id": "c",
    "key": KEY.text(), "pid": 1, "pid_start": 1,
}  # fmt: skip
CURE: Final = "; remove it, or copy it again from its master's host"
FILES: Final[dict[str, tuple[object, str]]] = {
    "empty": (b"", f"empty{CURE}"),
    "not JSON": (b"{", f"not JSON{CURE}"),
    "no object": (b"[]", f"not a JSON object{CURE}"),
    "without a key": (GOOD | {"key": None}, f'"key" is missing, or is not a text{CURE}'),
    "with half a key": (
        GOOD | {"key": KEY.text()[:-1]},
        '"key" is not a key: expected 64 hexadecimal digits, or ROLE- and 64 of them' + CURE,
    ),
    "with no URL": (GOOD | {"url": "::"}, f'"url" is not http://HOST:PORT{CURE}'),
    "with no process": (
        GOOD | {"pid": -1},
        f'"pid" and "pid_start" do not identify a process{CURE}',
    ),
    "of a newer version": (
        GOOD | {"version": 2},
        "a newer ciel wrote it (format 2; this ciel reads formats up to 1); upgrade ciel here",
    ),
}


@pytest.mark.parametrize("content, said", FILES.values(), ids=FILES)
def test_an_invalid_access_file_is_reported(
    home: Home, typed: Typed, content: object, said: str
) -> None:
    path = home.path / "access.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    path.chmod(0o600)
    text = f"ciel: access file {home.path}/access.json: {said}\n"
    assert typed(home, "status", "--access", str(path)) == (3, "", text)


@pytest.mark.slow
def test_all_programs_report_a_bad_access_file_in_the_same_words(home: Home) -> None:
    path = home.path / "access.json"
    path.write_text(json.dumps(GOOD))
    path.chmod(0o644)
    text = (
        "access file HOME/access.json: other users can access it (mode 0644); "
        "type: chmod go= HOME/access.json\n"
    )
    for argv in (
        ["ciel", "submit", "--access", str(path), "--", "true"],
        ["ciel-worker", "--access", str(path)],
        ["ciel-master", "--access", str(path), "--listen", "127.0.0.1:0"],
    ):
        assert run(home, *argv) == (3, "", f"{argv[0]}: {text}")
    for words, said in (
        (["--access", "/etc"], "access file /etc: not a regular file"),
        (["--access", "absent"], "--access names absent: no such file"),
        (["-m", "127.0.0.1:9"],
         "no key for http://127.0.0.1:9 (--master): there is no "
         "HOME/state/ciel/localhost_PORT/access.json, "
         "and neither --access nor CIEL_ACCESS names a file"),
    ):  # fmt: skip
        assert run(home, "ciel", "status", *words) == (
            3, "", f"ciel: {said}\n".replace("127.0.0.1:9", "127.0.0.1:PORT"),
        )  # fmt: skip


@pytest.mark.slow
def test_every_command_reports_a_damaged_current_link(home: Home) -> None:
    current(home).parent.mkdir(parents=True)
    current(home).write_text("{")
    current(home).chmod(0o600)
    for words in (["status"], ["up"], ["down"], ["submit", "--", "true"]):
        assert run(home, "ciel", *words) == (
            3, "", f"ciel: access file HOME/state/ciel/current: not JSON{CURE}\n",
        )  # fmt: skip


# --- few files, full disks ------------------------------------------------------------------------


def with_few_files(number: int, *argv: str) -> list[str]:
    return ["sh", "-c", f'ulimit -n {number} && exec "$@"', "sh", *argv]


@pytest.mark.slow
def test_a_cluster_works_with_few_open_files(home: Home) -> None:
    words = ("submit", "--quiet", "--array", "1-300", "--", "seq", "{}", "2000")
    done = home.run(*with_few_files(64, "ciel", *words))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == sum(2001 - n for n in range(1, 301))
    assert "Traceback" not in "".join(
        log.read_text() for log in (home.path / "state").rglob("*.log")
    )


MANY_INPUTS: Final = """
from ciel import Client
with Client() as client, client.job("wide") as job:
    parts = [job.run(["seq", "3000"]) for _ in range(80)]
    for ref in job.results([job.run(["wc"], inputs=parts)]):
        print(ref.details)
"""


@pytest.mark.slow
def test_too_few_open_files_for_one_task_fail_only_that_task(home: Home) -> None:
    done = home.run(*with_few_files(64, "python", "-c", MANY_INPUTS))
    said = re.sub(r"worker \S+ ", "worker W ", done.stdout)
    # each store has its own word for opening
    said = re.sub(r"it: (open|copy): ", "it: OPENING: ", said)
    advice = "Too many open files; raise the limit of open files (ulimit -n, now 64)"
    assert said == f"worker W could not start it: OPENING: {advice}\n", done.stderr


def test_too_few_open_files_for_a_command_are_reported(home: Home) -> None:
    done = home.run(*with_few_files(12, "ciel", "submit", "--", "true"))
    assert done.returncode == 1
    assert done.stderr.endswith(
        "Too many open files; raise the limit of open files (ulimit -n, now 12)\n"
    )
    assert "Traceback" not in done.stderr
    assert not home.processes()


def run_on_small_disk(home: Home, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script whose state directory is on a disk of 1 MiB."""
    place = home.path / "state"
    place.mkdir()
    mount = ["-t", "tmpfs", "-o", "size=1m,mode=0700", "none"]
    fill = f"fill() {{ head -c 2M /dev/zero >{place}/fill 2>/dev/null; }}; "
    return home.run(*on_mount(mount, place, ["sh", "-c", fill + script]))


@pytest.mark.slow
def test_a_full_disk_for_the_files_of_a_master_is_reported(home: Home) -> None:
    done = run_on_small_disk(
        home,
        "fill; ciel up --listen 127.0.0.1:0; echo $?; "
        "ciel-master --listen 127.0.0.1:0 2>&1 | tail -1 >&2; ciel submit -- echo out; echo $?",
    )
    place, full = "HOME/state/ciel/localhost_PORT", "No space left on device"
    said = plain(home, done.stderr).splitlines()
    assert done.stdout == "3\nout\n0\n"
    assert said[:2] == [
        f"ciel: master could not start: journal {place}/journal: cannot be written: {full}",
        f"ciel-master: access file {place}/access.json: it cannot be written: {full}",
    ]
    assert said[2].startswith(
        "ciel: no cluster is configured or running, so this command starts one: "
    )
    assert len(said) == 3
    assert not home.processes()


@pytest.mark.slow
def test_a_disk_that_fills_up_while_a_cluster_runs_stops_only_its_logs(home: Home) -> None:
    done = run_on_small_disk(
        home,
        "ciel up --slots 1 --listen 127.0.0.1:0 >/dev/null && fill; "
        "ciel submit --array 1-3 -- sh -c 'echo {}; echo why >&2'; echo $?; "
        "ciel submit -- sh -c 'echo why >&2; exit 3' 2>&1 | grep -c 'exit status 3'; "
        "ciel status >/dev/null; echo $?; ciel down; echo $?",
    )
    assert done.stdout == "1\n2\n3\n0\n1\n0\n0\n"
    assert plain(home, done.stderr) == (f"{UP}ciel: the cluster at http://127.0.0.1:PORT is down\n")
    assert not home.processes()
