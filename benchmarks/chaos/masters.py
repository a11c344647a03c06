"""Rows about masters that are killed, have a wrong clock, or get jobs that never end."""

from __future__ import annotations

import json
import signal
import struct
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.chaos import peers
from benchmarks.chaos.cluster import Cluster, await_that, disturb, settled
from benchmarks.chaos.faults import build_clock, pause
from benchmarks.chaos.rows import Figure, Findings, Note, Setting, row
from benchmarks.chaos.workload import LEAVES, Sums
from ciel.client.client import Client
from ciel.core.events import AddTask, CloseJob, WantObjects
from ciel.core.ids import child_id, output_ids
from ciel.core.tasks import DEFAULT_NEEDS, Mentions, TaskSpec
from ciel.wire.descriptors import read_summary

YEAR_S: Final = 365 * 24 * 3600
SPAWNER: Final = """
from ciel.executors.sdk import ciel_task

def run(task):
    command, number = task.kwargs["command"], 2 * task.kwargs["number"]
    children = [
        task.spawn("proc", command=command, proc_kwargs={"command": command, "number": child})
        for child in (number, number + 1)
    ]
    task.tail_spawn("stdinout", args={"command_line": ["cat"], "inputs": children})

ciel_task.serve(run)
"""


@row(
    "M1",
    "the master is killed every 5 s, and restarted from its journal (J5k)",
    "running programs go on; workers and client come back; no finished task runs again",
    "≤ 1.3 x the undisturbed time; 0 finished tasks run again; 0 programs cut; nothing lost",
)
def _killed_master(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES, 100))
    with Cluster.running(setting) as cluster, cluster.client() as client:
        pids = [cluster.daemons[f"worker{number}"].pid for number in range(2)]
        trial = disturb(
            cluster, client, sums, setting.seconds(5.0, 2.0), lambda: cluster.restart("master")
        )
        restarted = [cluster.daemons[f"worker{number}"].pid for number in range(2)] != pids
        alive = all(cluster.daemons[f"worker{number}"].poll() is None for number in range(2))
    yield from trial.figures(1.3)
    yield Figure("finished tasks that ran again", trial.runs.finished_again, "", 0)
    yield Figure("programs cut", trial.runs.cut, "", 0)
    yield Figure("workers that ended", restarted or not alive, "", 0)
    yield from peers.killed_master()


@row(
    "M5",
    "the master is killed 50 times in J5k, every fifth time only stopped, and continued later",
    "the standby takes over; the earlier master can do nothing any more, and ends",
    "time to the first task of the new master: median ≤ 1 s, 99 % ≤ 3 s; nothing lost; every "
    "stopped master ends",
    limit_s=3600.0,
)
def _takeover(setting: Setting) -> Findings:
    sums, wanted = Sums(setting.count(LEAVES, 100)), setting.count(50, 5)
    times: list[float] = []
    again = fenced = stopped = wrong = jobs = 0
    with Cluster.running(setting, 3) as cluster, cluster.client() as client:
        names = ["standby", "master"]
        cluster.start_standby("standby")
        while len(times) < wanted:
            notes = f"job{jobs}"
            jobs += 1
            with client.job("J5k") as job:
                total = sums.add(job, cluster.inside(notes))
                job.want([total])
                while len(times) < wanted and job.settled(total) is None:
                    names.reverse()
                    stops = len(times) % 5 == 4
                    stopped += stops
                    found = take_over(cluster, names[0], notes, stops=stops)
                    times += [found] if found is not None else []
                    fenced += stops and cluster.daemons[names[0]].wait(60) == 1
                    cluster.start_standby(names[0])
                wrong += job.read(total, timeout_s=300) != sums.expected()
            again += cluster.runs(notes).finished_again
    times.sort()
    yield Figure("median", times[len(times) // 2], "s", 1.0, digits=2)
    yield Figure("99 %", times[int(len(times) * 0.99)], "s", 3.0, digits=2)
    yield Figure("wrong results", wrong, "", 0)
    yield Figure("finished tasks that ran again", again, "", 0)
    yield Figure("stopped masters that ended", fenced, "", stopped, at_most=False)
    yield Figure("takeovers", len(times))


def take_over(cluster: Cluster, master: str, notes: str, *, stops: bool) -> float | None:
    """Kill or stop the master; return the time until a task of the next one starts, or None if the
    job ended before. The workers start tasks that they have already without a master.
    """
    url = cluster.access()["url"]
    pause(0.5)
    failed_ns = time.monotonic_ns()
    cluster.signal(master, signal.SIGSTOP if stops else signal.SIGKILL)
    await_that(lambda: cluster.access()["url"] != url, "a takeover")
    pause(1.0)
    cluster.signal(master, signal.SIGCONT)
    if not stops:
        cluster.kill(master)
    text = Path(cluster.inside(notes)).read_text()
    lines = [line.split() for line in text.splitlines()]
    starts = sorted(int(at) for at, what, _ in lines if what == "starts" and int(at) > failed_ns)
    pauses = [(after - before, after) for before, after in pairwise([failed_ns, *starts])]
    return (max(pauses)[1] - failed_ns) / 1e9 if pauses else None


@row(
    "M10",
    "the clock of a worker, then of the master, jumps by a year, forward and back, in mid-job",
    "nothing: time limits use monotonic clocks",
    "same result; 0 tasks run again; no worker declared dead",
)
def _wrong_clocks(setting: Setting) -> Findings:
    sums = Sums(setting.count(LEAVES // 2, 100))
    library = build_clock(setting.directory)
    files = {name: setting.directory / f"{name}.clock" for name in ("master", "worker0")}
    for file in files.values():
        file.write_bytes(bytes(4096))

    preload = f"LD_PRELOAD={library}"
    wraps = {name: ["env", preload, f"CHAOS_CLOCK={file}"] for name, file in files.items()}
    wrong = again = moved = 0
    with Cluster.running(setting, wraps=wraps) as cluster, cluster.client() as client:
        sums.run(client, cluster.inside("clean"))
        for name, ahead_s in (("worker0", YEAR_S), ("worker0", -YEAR_S), ("master", YEAR_S),
                              ("master", -YEAR_S), ("worker0", 0), ("master", 0)):  # fmt: skip
            notes = f"{name}{ahead_s}"
            with client.job("J5k") as job:
                total = sums.add(job, cluster.inside(notes))
                job.want([total])
                await_that(
                    lambda n=notes: cluster.runs(n).started > sums.leaves // 3,  # type: ignore[misc]  # the default binds now
                    "a third of the job",
                )
                with open(files[name], "r+b") as clock:
                    clock.write(struct.pack("@l", ahead_s))
                wrong += job.read(total, timeout_s=300) != sums.expected()
            again += cluster.runs(notes).again
            shown = cluster.home.run(*wraps[name], "date", "+%s").stdout
            moved += abs(int(shown) - time.time()) > YEAR_S / 2
        workers = len(client.ask("workers"))
        joined = [cluster.redialled(f"worker{number}") for number in range(2)]
    yield Figure("wrong results", wrong, "", 0)
    yield Figure("runs again", again, "", 0)
    yield Figure("workers", workers, "", 2, at_most=False)
    yield Figure("clocks that showed another year", moved, "", 4, at_most=False)
    yield Figure("connections that workers lost", sum(joined) - 2, "", 0)


@row(
    "M13",
    "a task spawns two tasks, each of which does so again, for ever",
    "other jobs are served; the job is stopped at a limit, or cancelled by a person",
    "stopped at a limit; other jobs ≥ 0.8 x their rate",
)
def _endless_spawning(setting: Setting) -> Findings:
    seconds = setting.seconds(20.0, 5.0)
    limit = ("--tasks-max", str(setting.count(1000, 200)))
    with Cluster.running(setting, of_master=limit) as cluster, cluster.client() as client:
        before = rate(client, seconds)
        command = [sys.executable, "-c", SPAWNER]
        with cluster.client() as other:
            endless = other.job("endless")
            kwargs = {"command": command, "number": 1}
            endless.want(endless.add("proc", {"command": command, "proc_kwargs": kwargs}))
            endless.close()  # an open job may get other tasks, so its failed result does not end it
            pause(1.0)
            beside = rate(client, seconds)
            tasks = sum(client.ask("status")["tasks"].values())
            state = str(read_summary(client.ask("jobs", {"job": endless.id})[0]).state)
            endless.cancel("a trial")
            started_s = time.monotonic()
            await_that(lambda: sum(w["running"] for w in client.ask("workers")) == 0, "idle slots")
            idle_s = time.monotonic() - started_s
    yield Figure("rate of another job", beside / before, "x", 0.8,
                 at_most=False, digits=2)  # fmt: skip
    yield Figure("stopped at a limit", state == "failed", "", 1, at_most=False)
    yield Figure("tasks that it had spawned", tasks)
    yield Figure("slots idle after it was cancelled", idle_s, "s", 1.0, digits=1)


def rate(client: Client, seconds: float) -> float:
    """Return how many programs of 10 ms a second another job runs."""
    until_s, count = time.monotonic() + seconds, 0
    with client.job("other") as job:
        while time.monotonic() < until_s:
            tasks = [job.run(["sleep", "0.01", count + n]) for n in range(10)]
            count += len(settled(job, tasks))
    return count / seconds


@row(
    "M14",
    "a client sends graphs with cycles, of 1 to 100,000 tasks",
    "the job fails as soon as it is closed, with NEVER_MADE, which names an object of the cycle",
    "all fail; ≤ 1 s at 100,000 tasks; nothing runs",
)
def _cyclic_graphs(setting: Setting) -> Findings:
    sizes = [1, 2, 3, 10, 1000, setting.count(100_000, 2000)]
    refused, times, ran = 0, [], setting.directory / "ran"
    with Cluster.running(setting, 1) as cluster, cluster.client() as client:
        for size in sizes:
            took_s, reason = send_cycle(client, size, ran)
            times.append(took_s)
            refused += reason in ("NEVER_MADE", "DEPENDENCY_FAILED", "rejected")
        with client.job("next") as job:
            job.read(job.run(["true"]), timeout_s=300)
    yield Figure("jobs refused", refused, "", len(sizes), at_most=False)
    yield Figure(f"time at {sizes[-1]:,} tasks", times[-1], "s", 1.0, digits=2)
    yield Figure("programs that ran", ran.exists(), "", 0)
    yield Note(f"times: {', '.join(f'{s:.2f} s' for s in times)} for {sizes} tasks; {reason}")


def send_cycle(client: Client, size: int, ran: Path) -> tuple[float, str]:
    """Send a cycle; return the time from the last message to the failure, and its reason."""
    job = client.job("cycle")
    ids = [child_id(job.id, number, "") for number in range(size)]
    outputs = [output_ids(task, 1) for task in ids]
    payload = json.dumps({"args": {"command_line": ["touch", str(ran)]}}).encode()
    specs = [
        TaskSpec(
            task, job.id, job.id, number, "", "stdinout", outputs[(number + 1) % size],
            outputs[number], DEFAULT_NEEDS, False, Mentions.NOTHING, "", payload,
        )
        for number, task in enumerate(ids)
    ]  # fmt: skip
    for start in range(0, size, 1000):
        client.send(*[AddTask(spec, ()) for spec in specs[start : start + 1000]])
    client.ask("status")  # the master has all tasks when it answers
    started_s = time.perf_counter()
    client.send(WantObjects(job.id, outputs[0]), CloseJob(job.id))
    client.wait_for_job(job.id, 300)
    took_s = time.perf_counter() - started_s
    told = client.ask("job", {"job": job.id})
    said = f"{told['failures']} {told['summary']}"
    found = [word for word in ("NEVER_MADE", "DEPENDENCY_FAILED", "rejected") if word in said]
    return took_s, found[0] if found else said[:200]
