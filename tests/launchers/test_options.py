import json
from pathlib import Path

import jsonschema
import pytest

from ciel.cli.commands.up import main
from ciel.cli.launchers.options import named_launcher, split_words, worker_range
from ciel.cli.outcome import UsageError
from ciel.launchers.commands import worker_command
from ciel.launchers.interface import Allocation, LauncherOptionError, Phase, Site
from ciel.launchers.slurm import SlurmLauncher, parse_accounting, parse_queue
from ciel.launchers.ssh import Host, read_hosts, why_ended

ZERO_TO_TWO = ("--on", "slurm", "--workers", "0..2")


@pytest.mark.parametrize(
    "words, message",
    [
        (("--on", "slurm"), "--on slurm needs --workers N..M"),
        ((*ZERO_TO_TWO, "--", "--array=1-3"), "--array: each worker gets a job of its own"),
        ((*ZERO_TO_TWO, "--", "-t5"), "-t: use --time of ciel up"),
        ((*ZERO_TO_TWO, "--", "-N", "2"), "-N: each worker gets a job of its own"),
        ((*ZERO_TO_TWO, "--", "job.sh"), "'job.sh' is not an option of sbatch"),
        ((*ZERO_TO_TWO, "--poll", "0"), "--poll must be a positive number"),
        (("--workers", "0..2"), "only a launcher brings workers"),
        (("--on", "nowhere"), "not installed"),
        (("--on", "ssh"), "--on ssh needs --hosts FILE"),
        (("--on", "ssh", "--hosts", "/nowhere/hosts"), "--hosts /nowhere/hosts: No such file"),
        (("--idle", "5s"), "--idle needs --on"),
        (("--", "--mem=3"), "options after -- are for a launcher"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_starts(
    words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        main("up", words)
    assert message in str(caught.value)


def test_more_workers_than_places_of_the_hosts_are_refused(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node1 workers=2\n")
    with pytest.raises(UsageError, match="have places for 2"):
        main("up", ("--on", "ssh", "--hosts", str(hosts), "--workers", "0..3"))


def test_the_words_behind_two_dashes_are_for_the_launcher() -> None:
    assert split_words(["--on", "slurm", "--", "--mem=1G", "--"]) == (
        ["--on", "slurm"], ["--mem=1G", "--"],
    )  # fmt: skip
    assert named_launcher(["--workers", "2", "--on=ssh"]) == "ssh"
    assert named_launcher(["--workers", "2"]) is None


@pytest.mark.parametrize("text, found", [("3", [3, 3]), ("0..40", [0, 40]), ("2..2", [2, 2])])
def test_workers_are_a_number_or_a_range(text: str, found: list[int]) -> None:
    assert worker_range(text) == found


@pytest.mark.parametrize("text", ["0", "3..2", "0..0", "a", "1..", "..2", "-1..2"])
def test_other_words_are_no_range_of_workers(text: str) -> None:
    with pytest.raises(Exception, match="is not"):
        worker_range(text)


# --- what Slurm prints ----------------------------------------------------------------------------


def test_the_queue_of_slurm_is_read() -> None:
    text = """\
12_1|RUNNING|node7|None
12_2|PENDING||Resources
12_3|COMPLETING|node7|None
13_1|FAILED|node8|NonZeroExitCode
13_2|TIMEOUT|node8|TimeLimit
14|CANCELLED||None
14_1|PENDING||(Nodes required for job are DOWN, a|b)
a broken line
"""
    assert parse_queue(text) == [
        Allocation("12_1", Phase.RUNNING, "", "node7"),
        Allocation("12_2", Phase.QUEUED, "Resources"),
        Allocation("12_3", Phase.RUNNING, "", "node7"),
        Allocation("13_1", Phase.ENDED, "has ended as FAILED (NonZeroExitCode)", "node8"),
        Allocation("13_2", Phase.ENDED, "has ended as TIMEOUT (TimeLimit)", "node8"),
        Allocation("14_1", Phase.QUEUED, "(Nodes required for job are DOWN, a|b)"),
    ]


@pytest.mark.parametrize(
    "text, how",
    [
        ("FAILED|3:0\n", "has ended as FAILED with status 3"),
        ("COMPLETED|0:0\n", "has ended as COMPLETED"),
        ("OUT_OF_MEMORY|0:125\n", "has ended as OUT_OF_MEMORY by signal 125"),
        ("CANCELLED by 1000|0:15\n", "has ended as CANCELLED by 1000 by signal 15"),
        ("", ""),
        ("\n|\n", ""),
    ],
)
def test_the_accounting_of_slurm_is_read(text: str, how: str) -> None:
    assert parse_accounting(text) == how


@pytest.mark.parametrize(
    "words, slots",
    [
        ([], 0), (["-c", "4"], 4), (["-c4"], 4), (["--cpus-per-task=8"], 8),
        (["--cpus-per-task", "8", "-c", "2"], 2), (["--constraint=c4"], 0),
    ],
)  # fmt: skip
def test_the_size_of_workers_follows_from_the_options_of_sbatch(
    words: list[str], slots: int, site: Site
) -> None:
    options = {"poll": 1.0, "share_access": "path", "worker_command": None}
    assert SlurmLauncher(site, options, words).size.slots == slots


# --- hosts of ssh ---------------------------------------------------------------------------------


def test_a_file_of_hosts_is_read() -> None:
    text = "node1\n\n# a comment\nann@node2:2222 slots=4 workers=2 # two\n[::1]:22\n[fe80::2]\n"
    assert read_hosts(text) == [
        Host("node1"), Host("ann@node2", 2222, 4, 2), Host("::1", 22), Host("fe80::2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, message",
    [
        ("node:port", "line 1 of the hosts: the port must be a number"),
        ("node slots=many", "slots must be a number up to 1024"),
        ("node cores=3", "'cores=3' is neither slots=N nor workers=N"),
        ("\n-oProxyCommand=evil", r"line 2 of the hosts: '-oProxyCommand=evil' is not"),
        ("ann@-oProxyCommand=evil", "is not \\[USER@\\]HOST"),
        ("# nothing", "names no host"),
    ],
)
def test_a_wrong_file_of_hosts_is_refused(text: str, message: str) -> None:
    with pytest.raises(LauncherOptionError, match=message):
        read_hosts(text)


@pytest.mark.parametrize(
    "status, said, part",
    [
        (255, "Host key verification failed.", "check it by hand: ssh node1"),
        (255, "ann@node1: Permission denied (publickey).", "ssh-copy-id node1"),
        (255, "ssh: Could not resolve hostname node1", "check the name"),
        (127, "bash: ciel-worker: not found", "install ciel, or name its path"),
        (2, "ciel-worker: --store: wrong", "with status 2; its log ends: ciel-worker: --store"),
        (-9, "", "by signal 9"),
        (0, "", "has ended"),
    ],
)
def test_the_end_of_a_connection_is_explained(status: int, said: str, part: str) -> None:
    assert part in why_ended("node1", status, said, "ciel-worker")


def test_options_of_the_user_win_over_those_of_an_allocation(site: Site) -> None:
    site = site._replace(worker_options=["--slots", "3", "--store", "shm:capacity=1 GiB"])
    command = worker_command("ciel-worker", site, {"--slots": "$CPUS", "--allocation": "$JOB"})
    assert command == (
        "ciel-worker --listen auto --slots 3 --store 'shm:capacity=1 GiB' --allocation $JOB"
    )


# --- the report -----------------------------------------------------------------------------------


def test_a_report_survives_a_restart_and_tells_failed_from_cancelled(tmp_path: Path) -> None:
    from ciel.cli.launchers.autoscaler import Report
    from ciel.launchers.scaling import Member

    path = tmp_path / "report.json"
    report = Report(path)
    report.decided("request", "tasks wait", allocations=["1_1", "1_2", "1_3"])
    report.decided("nothing", "1 on its way")
    report.decided("nothing", "2 on their way")
    report.cancelled(["1_2"], "no use")
    ended = [Allocation(f"1_{number}", Phase.ENDED, "has ended") for number in (1, 2, 3)]
    report.write("slurm", [], [Member("w", "1_3", 1)])
    report.write("slurm", ended, [])
    Report(path).write("slurm", [], [])
    found = json.loads(path.read_text())
    schemas = Path(__file__).parents[2] / "docs/schemas"
    for name, rows in (("list", found["allocations"]), ("explain", found["decisions"])):
        jsonschema.validate(rows, json.loads((schemas / f"launcher-{name}.json").read_text()))
    assert [row["what"] for row in found["decisions"]] == ["request", "nothing", "cancel"]
    assert [(row["id"], row["failed"]) for row in found["allocations"]] == [
        ("1_1", True), ("1_2", False), ("1_3", False),
    ]  # fmt: skip
