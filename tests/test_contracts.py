"""Plants a violation of each rule about who may import or change what, and expects that the import
contracts (`lint-imports`) or the type checker refuse it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
VIOLATIONS = {
    "Layers: a component imports only from the layers below": ("core/ids", "ciel.wire.codec"),
    "Components that decide import no reactor, no process and no socket": ("core/refs", "socket"),
    "State machines import core only": ("master/state/placement/credit", "ciel.wire.limits"),
    "Components without a reactor never load one": ("client/locks", "twisted"),
    "Stores and executors are found by name, never imported by the engine": (
        "worker/host", "ciel.executors.proc",
    ),
    "The language asks its host for everything outside": ("skywriting/host", "subprocess"),
    "The parts of the graph return consequences: only operations on the whole graph import it": (
        "core/graph/retention", "ciel.core.graph.task_graph",
    ),
    "Each part of the master's state knows only the parts before it": (
        "master/state/attempts", "ciel.master.state.jobs",
    ),
    "Queries change nothing: they see no part that decides": (
        "master/state/queries/views", "ciel.master.state.operations",
    ),
    "Components that decide know no clock and no file: time is an argument": (
        "master/state/placement/credit", "time",
    ),
    "The master carries no content: it opens no store": (
        "master/attaching", "ciel.storage.interface",
    ),
    "Only commands read the command line": ("client/locks", "argparse"),
    "Only plugins imports by name": ("worker/host", "importlib"),
    "Only wire.codec decodes what peers send": ("net/paths", "json"),
    "No daemon unpickles": ("worker/logs", "pickle"),
    "Only launch starts processes for a daemon": ("worker/logs", "subprocess"),
    "Only stores touch the files of objects": ("worker/retention", "ciel.storage.shelf"),
    "Only access computes with the secret of a key": ("client/data/worker_http", "hmac"),
    "An executor decides: it opens no connection and starts no process": (
        "executors/stdinout", "socket",
    ),
    "Work items of a Python task see the evaluator by its interface only": (
        "executors/programs/python/evaluation/sharing",
        "ciel.executors.programs.python.evaluation.evaluator",
    ),
    "The lower modules of the client state what they need, and know no client": (
        "client/calls/reading", "ciel.client.client",
    ),
    "Commands share code below them, and do not call each other": (
        "cli/commands/key", "ciel.cli.commands.task",
    ),
}  # fmt: skip

REFUSED = """
from ciel.core.events import CancelTask
from ciel.core.graph.task_graph import TaskGraph
from ciel.core.ids import TaskId
from ciel.core.refs import Value
from ciel.core.tasks import DEFAULT_NEEDS
from ciel.master.state.machine import MasterMachine
from ciel.storage.interface import ObjectInfo, ObjectReader, ObjectStore
from ciel.worker.state.machine import WorkerMachine


def master(machine: MasterMachine) -> None:
    del machine.workers["w1"]  # only the membership removes workers
    del machine.jobs["1"]  # only the table of jobs does
    machine.histories.clear()  # only the components record events
    machine.retry_states.clear()
    machine.outbox = []  # the service takes the messages, and adds none


def worker(machine: WorkerMachine) -> None:
    machine.attempts.clear()  # only the machine changes its containers
    machine.stored.clear()
    machine.orders.append(None)
    machine.reports.clear()


def values(message: CancelTask, value: Value) -> None:
    message.attempt = 2  # messages and references never change
    value.content = b""
    DEFAULT_NEEDS.slots = 2


def stores(reader: ObjectReader, info: ObjectInfo) -> None:
    reader.write(b"")  # an object never changes after its commit
    reader.path = ""
    info.size_bytes = 2


def uncommitted(store: ObjectStore) -> ObjectReader:
    return store.begin("a")  # only a committed object can be read by other tasks
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what `lint-imports` prints about a copy of the sources with all violations."""
    copy = tmp_path_factory.mktemp("planted")
    for path in (ROOT / "ciel").rglob("*.py"):
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for name in ("executors", "scc", "shm", "skywriting"):
        ignored = shutil.ignore_patterns("*.so", "*.sw", "tests", "bin", "__pycache__")
        shutil.copytree(ROOT / name, copy / "ciel" / name, ignore=ignored, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for module, imported in VIOLATIONS.values():
        with open(copy / "ciel" / f"{module}.py", "a") as file:
            file.write(f"\nimport {imported}\n")
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache"], cwd=copy, env={"PYTHONPATH": str(copy), "COLUMNS": "300"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.mark.parametrize("contract", [each["name"] for each in CONTRACTS["contracts"]])
def test_a_planted_import_breaks_its_contract(planted: str, contract: str) -> None:
    importer, imported = VIOLATIONS[contract]
    assert f"{contract} BROKEN" in " ".join(planted.split())
    path = f"ciel.{importer.replace('/', '.')} -> {imported.partition('.')[0]}"
    assert path in planted


def test_the_type_checker_refuses_changes_by_others(tmp_path: Path) -> None:
    (tmp_path / "changes.py").write_text(REFUSED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(tmp_path / "changes.py")],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    changes = [
        number for number, line in enumerate(REFUSED.splitlines(), 1) if line.startswith("    ")
    ]
    reported = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert reported == set(changes), done.stdout + done.stderr
