"""Tests scripts on a real cluster: the number of their tasks, their environment, and losses while
they run.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from ciel.client import Client, ClientError, LocalCluster
from ciel.client.errors import LogUnreadableError
from ciel.client.jobs.scripts import Scripts, Surroundings
from ciel.core.refs import Reference
from ciel.testing.homes import HandCluster, Home, wait_for

WAIT_S: Final = 30.0
FIB: Final = """
function fib(n) {
    print("fib " + str(n));
    if (n < 2) { return n; }
    one = spawn(fib, [n - 1]);
    other = spawn(fib, [n - 2]);
    return *one + *other;
}
return fib(int(env["N"]));
"""
CALLS: Final = 177  # of fib(10)
WITH_CONTINUATIONS: Final = 265


class Ran(NamedTuple):
    """The value of a script, or its failure; the number of its tasks by state; and its log."""

    value: Any
    failure: str
    tasks: Mapping[str, int]
    log: list[str]


class Lab:
    """A cluster, and a client that runs scripts on it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def run(
        self,
        text: str,
        *argv: str,
        package: Mapping[str, bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        refs = {
            key: self.client.upload_content(content, key)
            for key, content in (package or {}).items()
        }
        job = self.client.job("script")
        output = Scripts(self.client, job, Surroundings(env or {}, argv, refs)).add(
            text.encode(), "script.sw"
        )
        job.want((output,))
        job.close()
        value, failure = None, ""
        try:
            value = json.loads(job.read(output, WAIT_S))
        except ClientError as error:
            failure = str(error)
        summary = job.wait(WAIT_S)
        log = b""
        for reader in self.client.log_readers(summary.id):
            with suppress(LogUnreadableError):  # of a worker that was killed
                log += reader.read()
        return Ran(value, failure, summary.counts, log.decode().splitlines())

    def value(self, text: str, *argv: str) -> Any:
        ran = self.run(text, *argv)
        assert not ran.failure, ran.failure
        return ran.value

    def failure(self, text: str) -> str:
        ran = self.run(text)
        assert ran.failure, ran.value
        return ran.failure


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("cluster")
    with (
        LocalCluster(workers=1, slots=2, directory=directory) as cluster,
        Client(cluster) as client,
    ):
        yield Lab(client)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start a cluster in which tasks start only by order of the master."""
    directory = tmp_path_factory.mktemp("strict")
    with (
        LocalCluster(workers=1, slots=2, directory=directory, delegates=False) as cluster,
        Client(cluster) as client,
    ):
        yield Lab(client)


# --- number of tasks ------------------------------------------------------------------------------


def test_every_call_and_every_continuation_is_a_task(strict: Lab) -> None:
    ran = strict.run(FIB, env={"N": "10"})
    assert ran.value == 55
    assert ran.tasks == {"done": WITH_CONTINUATIONS}
    assert len(ran.log) == CALLS


@pytest.mark.slow
def test_small_children_run_within_their_parents(lab: Lab) -> None:
    ran = lab.run(FIB, env={"N": "10"})
    assert ran.value == 55
    assert len(ran.log) == CALLS
    assert CALLS <= ran.tasks["done"] < WITH_CONTINUATIONS


def test_very_short_calls_need_no_continuations(lab: Lab) -> None:
    """Single runs may differ, when a busy machine makes other programs seem idle."""
    counts = (lab.run(FIB, env={"N": "4"}).tasks for _ in range(100))
    assert {"done": 9} in counts


def test_a_program_with_long_calls_leaves_some_to_others(lab: Lab) -> None:
    """Each call takes longer than a program keeps its children to itself."""
    ran = lab.run("""
        function count(n) { i = 0; while (i < n) { i = i + 1; } return i; }
        a = spawn(count, [150000]); b = spawn(count, [150000]); c = spawn(count, [150000]);
        return *a + *b + *c;
    """)
    assert ran.value == 450000
    assert ran.tasks["done"] > 4  # there was a continuation, because other programs ran calls


@pytest.mark.slow
def test_the_depth_of_nested_children_has_no_limit(lab: Lab) -> None:
    ran = lab.run("""
        function down(n) { if (n == 0) { return 0; } return *spawn(down, [n - 1]) + 1; }
        return down(1500);
    """)
    assert ran.value == 1500
    assert ran.tasks["done"] > 1500


def test_a_task_whose_result_is_not_read_does_not_run(lab: Lab) -> None:
    ran = lab.run("""
        f = function(x) { print("ran " + str(x)); return x; };
        unread = spawn(f, [1]);
        read = spawn(f, [2]);
        return *read;
    """)
    assert [line for line in ran.log if "ran" in line] == ran.log
    assert len(ran.log) == 1
    assert ran.tasks == {"done": 2, "dormant": 1}


# --- no repetition, no loss -----------------------------------------------------------------------


def test_each_effect_happens_once_wherever_a_script_stops(lab: Lab, tmp_path: Path) -> None:
    out = tmp_path / "effects"
    ran = lab.run(
        """
        say = function(word) {
            done = *spawn_exec("stdinout", {"inputs": [], "command_line":
                ["sh", "-c", "echo " + word + " >>" + argv[0] + "; echo 1"]}, 1)[0];
            print(word);
            return done;
        };
        sum = say("a") + *spawn(say, ["b"]);
        for (w in ["c", "d"]) { sum = sum + *spawn(say, [w]); }
        return [sum, say("e")];
        """,
        str(out),
    )
    assert ran.value == [4, 1]
    assert Counter(out.read_text().split()) == Counter("abcde")
    assert len(ran.log) == 5


def test_a_value_that_was_read_is_not_read_again(lab: Lab) -> None:
    """With the original Skywriting this script looped forever."""
    ran = lab.run("""
        f = function(x) { return x + 1; };
        out = function(n) {
            return spawn_exec("stdinout", {"inputs": [], "command_line": ["echo", n]}, 1)[0];
        };
        y = *spawn(f, [1]);
        a = y + *out("1");
        b = y + *out("2");
        return [a, b, y];
    """)
    assert ran.value == [3, 4, 2]
    assert ran.tasks["done"] <= 7


def test_a_spawned_function_gets_its_arguments_as_of_the_spawn(lab: Lab) -> None:
    assert lab.value("""
        add = function(given) { m = given; m += 9; return m; };
        l = [1];
        later = spawn(add, [l]);
        l += 2;
        return [*later, l];
    """) == [[1, 9], [1, 2]]


def test_a_future_may_be_passed_on(lab: Lab) -> None:
    assert lab.value("""
        f = function(x) { return x + 1; };
        g = function(r) { return *r + 10; };
        h = function() { return {"r": spawn(f, [5])}; };
        first = spawn(f, [1]);
        inner = *spawn(h, []);
        return [*spawn(g, [first]), *spawn(g, [inner["r"]]), *first];
    """) == [12, 16, 2]


def test_a_large_state_and_large_results_are_stored_as_objects(lab: Lab) -> None:
    assert lab.value("""
        big = ""; i = 0;
        while (i < 17) { if (i == 0) { big = "x"; } else { big = big + big; } i = i + 1; }
        n = *spawn(function(t) { return len(t); }, [big]);
        m = int(*spawn_exec("stdinout", {"inputs": [], "command_line": ["echo", "7"]}, 1)[0]);
        back = *spawn(function() { return [big, m]; }, []);
        return [n, m, len(back[0]), len(big)];
    """) == [65536, 7, 65536, 65536]


def test_select_continues_with_the_first_available_reference(lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    assert lab.value(
        """
        sh = function(c) { return spawn_exec("stdinout", {"inputs": [], "command_line":
            ["sh", "-c", c]}, 1)[0]; };
        slow = sh("while [ ! -e " + argv[0] + " ]; do sleep 0.01; done; echo 1");
        fast = sh("echo 2");
        first = select([slow, fast]);
        go = *sh("touch " + argv[0] + "; echo 3");
        return [first, *slow, *fast];
        """,
        str(gate),
    ) == [[1], 1, 2]


# --- errors ---------------------------------------------------------------------------------------


def test_a_failed_child_is_reported_with_its_own_call_stack(lab: Lab) -> None:
    text = lab.failure("""function bad(n) {
            if (n == 0) { return 1 + "x"; }
            return *spawn(bad, [n - 1]);
        }
        return *spawn(bad, [2]);
    """)
    assert "cannot add" in text
    assert "script.sw, line 2, column" in text
    assert "script.sw, line 5, column" in text


def test_a_script_may_handle_a_failed_child(lab: Lab) -> None:
    ran = lab.run("""
        bad = function(x) { return x + "t"; };
        good = function(x) { return x; };
        a = [is_error(spawn(bad, [1])), is_error(spawn(good, [1]))];
        return [a, try_deref(spawn(bad, [2]), "none"), *spawn(good, [3])];
    """)
    assert ran.value == [[True, False], "none", 3]


def test_a_failed_program_is_reported_with_its_standard_error(lab: Lab) -> None:
    text = lab.failure("""
        return *spawn_exec("stdinout", {"inputs": [], "command_line":
            ["sh", "-c", "echo no such luck >&2; exit 3"]}, 1)[0];
    """)
    assert "exit status 3" in text
    assert "no such luck" in text


@pytest.mark.parametrize(
    "text, expected",
    [
        ("return 1 +;", "line 1"),
        ("x = 5;", "without a 'return'"),
        ('return "a" $ 2;', "llegal character"),
        ("return lenght;", 'Tried to read identifier "lenght", not found'),
        ('include "nonsense"; return 1;', "no standard include"),
        ('return package("none");', "not found"),
        ("return 1e308 * 10;", ""),
    ],
)
def test_a_fault_of_a_script_is_reported(lab: Lab, text: str, expected: str) -> None:
    assert expected in lab.failure(text)


@pytest.mark.slow
def test_a_program_that_dies_fails_only_its_current_call(lab: Lab, tmp_path: Path) -> None:
    """The enclosing tasks run again, but do not repeat their earlier effects."""
    killer = threading.Thread(target=_kill_who_spins)
    killer.start()
    ran = lab.run(
        """
        sh = function(c) { return spawn_exec("stdinout", {"inputs": [], "command_line":
            ["sh", "-c", c]}, 1)[0]; };
        spin = function(n) { i = n; while (true) { i = i + 1; } return i; };
        outer = function(n) {
            done = *sh("echo outer >>" + argv[0] + "; echo 1");
            return [done, is_error(spawn(spin, [n]))];
        };
        return *spawn(outer, [0]);
        """,
        str(tmp_path / "effects"),
    )
    killer.join()
    assert ran.value == [1, True], ran.failure
    assert (tmp_path / "effects").read_text() == "outer\n"


def _kill_who_spins() -> None:
    """Kill the program below this process that uses three seconds of CPU time from now on: more
    than the start of an interpreter takes. A warm program has used time for earlier tests.
    """
    before = dict(_programs())

    def spinning() -> list[int]:
        return [pid for pid, used_s in _programs() if used_s - before.get(pid, 0.0) > 3.0]

    wait_for(lambda: bool(spinning()), "a program that spins", WAIT_S)
    for pid in spinning():
        os.kill(pid, signal.SIGKILL)


def _programs() -> Iterator[tuple[int, float]]:
    """List the programs of scripts below this process, with their CPU times."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"programs.skywriting" in (entry / "cmdline").read_bytes():
                parent, used = _parent_and_time(entry)
                while parent not in (0, 1, os.getpid()):
                    parent, _ = _parent_and_time(Path(f"/proc/{parent}"))
                if parent == os.getpid():
                    yield int(entry.name), used


def _parent_and_time(process: Path) -> tuple[int, float]:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), int(fields[11]) / os.sysconf("SC_CLK_TCK")


def test_cancelling_a_job_ends_nested_calls_of_a_program(lab: Lab) -> None:
    job = lab.client.job("endless")
    output = Scripts(lab.client, job, Surroundings()).add(
        b"""spin = function(n) { print("spins"); i = n; while (true) { i = i + 1; } return i; };
        outer = function(n) { return *spawn(spin, [n]); };
        return *spawn(outer, [0]);""",
        "endless.sw",
    )
    job.want((output,))
    (log,) = lab.client.log_readers(job.id)
    wait_for(lambda: b"spins" in log.read(), "the innermost call", WAIT_S)
    job.cancel()
    assert job.wait(WAIT_S).state == "cancelled"
    assert lab.value("return 1;") == 1


@pytest.mark.slow
def test_whichever_worker_is_lost_the_value_is_the_same(home: Home, tmp_path: Path) -> None:
    cluster = HandCluster.start(home, workers=4)
    try:
        with Client(access=str(cluster.access)) as client:
            lab = Lab(client)
            for number in range(3):  # four workers at first, two in the end
                effects = tmp_path / f"effects{number}"
                victim = threading.Thread(target=_kill_at_work, args=(cluster, number, effects))
                victim.start()
                ran = lab.run(MANY_STEPS, str(effects))
                victim.join()
                assert ran.value == 4 * 13 + 4, ran.failure
                counts = Counter(effects.read_text().split())
                assert counts.keys() == set("0123")
                assert sum(counts.values()) <= 4 + 1, "only what ran there runs again"
    finally:
        cluster.stop()


MANY_STEPS: Final = """
function fib(n) { if (n < 2) { return n; }
    one = spawn(fib, [n - 1]); other = spawn(fib, [n - 2]); return *one + *other; }
total = 0;
for (i in range(4)) {
    total = total + *spawn(fib, [7]);
    total = total + *spawn_exec("stdinout", {"inputs": [], "command_line":
        ["sh", "-c", "echo " + str(i) + " >>" + argv[0] + "; sleep 0.1; echo 1"]}, 1)[0];
}
return total;
"""


def _kill_at_work(cluster: HandCluster, number: int, effects: Path) -> None:
    """Kill a worker after a step is done."""
    wait_for(lambda: effects.exists() and len(effects.read_text()) >= 4, "a step", WAIT_S)
    cluster.workers[number].kill()
    cluster.workers[number].communicate(timeout=20)


# --- environment of a script ----------------------------------------------------------------------


def test_entries_of_a_package_can_be_included_and_read(lab: Lab) -> None:
    ran = lab.run(
        """
        include package("lib");
        include package("lib");
        return [twice(4), *package("data"), len(read(package("large")))];
        """,
        package={
            "lib": b"twice = function(x) { return x + x; };",
            "data": b'{"a": [1, 2.5]}',
            "large": b"x" * 100_000,
        },
    )
    assert ran.value == [8, {"a": [1, 2.5]}, 100_000], ran.failure


def test_an_included_url_is_fetched_once_wherever_the_script_continues(lab: Lab) -> None:
    fetched: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # name given by the library
            fetched.append(self.path)
            self.send_response(200 if self.path == "/lib.sw" else 404)
            self.end_headers()
            self.wfile.write(b"plus = function(x) { return x + 1; };")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        text = """
            include argv[0];
            one = *spawn_exec("stdinout", {"inputs": [], "command_line": ["echo", "1"]}, 1)[0];
            return [plus(one), *spawn(plus, [5])];
        """
        assert lab.value(text, f"{url}/lib.sw") == [2, 6]
        assert fetched == ["/lib.sw"]
        assert "404" in lab.failure(f'include "{url}/none.sw"; return 1;')
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_entry_of_a_prompt_continues_from_the_previous_one(lab: Lab) -> None:
    job = lab.client.job("prompt")
    scripts = Scripts(lab.client, job, Surroundings())
    session: Reference | None = None
    values = []
    for number, text in enumerate(
        (
            "f = function(x) { return x + 1; }; a = [1];",
            "b = a; b += *spawn(f, [1]); b;",
            'x = *spawn_exec("stdinout", {"inputs": [], "command_line": ["echo", "9"]}, 1)[0];',
            "x;",
            "a;",
        )
    ):
        value, left = scripts.add_entry(text.encode(), f"entry {number}", session)
        job.want((value, left))
        values.append(json.loads(job.read(value, WAIT_S)))
        session = job.result(left, WAIT_S)
    job.close()
    assert values == [None, [1, 2], None, 9, [1, 2]]


def test_one_program_runs_several_scripts_in_sequence(lab: Lab) -> None:
    for _ in range(5):
        lab.value("return 1;")
        lab.failure("return 1 + '';")
    assert len(list(_programs())) <= 2 + 2  # of this cluster, and of the second cluster
