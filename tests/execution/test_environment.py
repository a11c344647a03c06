import pytest

from ciel.core.jobs import CallerContext
from ciel.core.offers.resources import read_amounts
from ciel.execution.environment import (
    Caller,
    Callers,
    changes,
    device_order,
    inherited,
    is_secret,
    task_environment,
    travelling,
)
from ciel.testing.builders import a_task

SECRETS = [
    "CIEL_ACCESS", "CIEL_KEY", "ciel_key", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PGPASSWORD",
    "DB_PASSWD", "MY_CREDENTIALS", "SSH_PRIVATE_KEY", "api_key", "X_API_KEY_2",
]  # fmt: skip
OTHERS = ["PATH", "HOME", "CIEL_MASTER", "KEYBOARD", "LANG", "SSH_AUTH_SOCK", "KEY", "PASS"]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_recognised_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", OTHERS)
def test_other_variables_are_not_secrets(name: str) -> None:
    assert not is_secret(name)


def test_tasks_inherit_all_variables_except_secrets() -> None:
    environ = dict.fromkeys([*SECRETS, *OTHERS], "x")
    assert inherited(environ) == dict.fromkeys(OTHERS, "x")


def test_the_environment_describes_the_task() -> None:
    spec = a_task("out", slots=3)
    assert task_environment(spec, 2, "w1", "/scratch/", {}) == {
        "CIEL_JOB": "job",
        "CIEL_TASK": spec.id,
        "CIEL_ATTEMPT": "2",
        "CIEL_WORKER": "w1",
        "CIEL_SCRATCH": "/scratch/",
        "CIEL_SLOTS": "3",
        "TMPDIR": "/scratch",
    }


def test_tmpdir_is_the_scratch_directory_unless_its_path_is_too_long_for_sockets() -> None:
    found = task_environment(a_task("out"), 1, "w", f"/{'long' * 20}/", {})
    assert "TMPDIR" not in found
    found = task_environment(a_task("out"), 1, "w", "/scratch/", {"TMPDIR": "/mine"})
    assert found["TMPDIR"] == "/mine"


def test_a_memory_limit_is_in_the_environment() -> None:
    spec = a_task("out")
    spec = spec._replace(needs=spec.needs._replace(memory_bytes=1 << 30))
    assert task_environment(spec, 1, "w", "/", {})["CIEL_MEMORY_BYTES"] == "1073741824"


def test_variables_of_the_task_override_all_others() -> None:
    found = task_environment(a_task("out"), 1, "w", "/", {"CIEL_JOB": "mine", "X": "y"})
    assert (found["CIEL_JOB"], found["X"]) == ("mine", "y")


def test_secrets_and_variables_that_describe_a_machine_are_not_sent() -> None:
    kept = {"FOO": "bar", "PATH": "/opt/bin", "OMP_NUM_THREADS": "4", "VIRTUAL_ENV": "/venv"}
    stays = dict.fromkeys([*SECRETS, "HOME", "TMPDIR", "CIEL_STORE", "SSH_TTY", "HOSTNAME"], "x")
    assert travelling({**kept, **stays, "LATIN": "\udcff"}) == kept


def test_a_callers_environment_replaces_the_workers() -> None:
    own = {"HOME": "/root", "CIEL_STORE": "shm", "SAME": "1", "OTHER": "2", "ONLY_HERE": "3"}
    context = CallerContext("/", {"SAME": "1", "OTHER": "two", "NEW": "4", "HOME": "/theirs"})
    assert changes(context, own) == {"ONLY_HERE": None, "OTHER": "two", "NEW": "4"}


def test_named_variables_are_added_to_the_workers_environment() -> None:
    context = CallerContext("/", {"HOME": "/theirs", "SAME": "1"}, replaces_env=False)
    assert changes(context, {"HOME": "/root", "SAME": "1", "OTHER": "2"}) == {"HOME": "/theirs"}


def test_callers_differ_if_their_programs_see_different_environments() -> None:
    callers = Callers({"A": "1"})
    contexts = {
        "first": CallerContext("/", {"A": "1"}),
        "same": CallerContext("/", {}, replaces_env=False),  # gives the same environment
        "other": CallerContext("/", {"A": "2"}),
        "elsewhere": CallerContext("/usr", {"A": "1"}),
    }
    for job, context in contexts.items():
        callers.describe(job, context)
    digests = {job: caller.digest for job in contexts if (caller := callers.find(job))}
    assert digests["first"] == digests["same"]
    assert len(set(digests.values())) == 3


def test_a_caller_is_forgotten_with_its_job_or_its_master() -> None:
    callers = Callers({})
    callers.describe("one", CallerContext("/one", {}))
    callers.describe("two", CallerContext("/two", {}))
    callers.describe("one", None)
    callers.describe("never known", None)
    assert callers.find("one") is None
    assert callers.find("two") == Caller("/two", {}, callers.find("two").digest)  # type: ignore[union-attr]  # not None
    callers.clear()
    assert callers.find("two") is None


def test_the_resources_of_a_task_are_in_the_environment() -> None:
    spec = a_task("out")
    amounts = read_amounts({"gpu": 1.5, "fast-disk/nvme": 1, "licence": 2})
    spec = spec._replace(needs=spec.needs._replace(resources=amounts))
    given = (("fast-disk/nvme", (("sda", 10_000),)), ("gpu", (("2", 10_000), ("0", 5000))))
    found = task_environment(spec, 1, "w", "/", {"CUDA_VISIBLE_DEVICES": "7"}, given)
    assert {name: found[name] for name in found if "RESOURCE" in name or "VISIBLE" in name} == {
        "CIEL_RESOURCES": "fast-disk/nvme=1,gpu=1.5,licence=2",
        "CIEL_RESOURCE_FAST_DISK_NVME": "sda",
        "CIEL_RESOURCE_GPU": "2,0",
        "CUDA_VISIBLE_DEVICES": "2,0",
        "HIP_VISIBLE_DEVICES": "2,0",
    }


def test_variables_that_name_devices_are_not_sent_to_other_machines() -> None:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    assert travelling({**dict.fromkeys(names, "0"), "X": "y"}) == {"X": "y"}


def test_the_order_of_devices_is_set_unless_the_worker_has_chosen_one() -> None:
    assert device_order({}) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert device_order({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == {}
    assert device_order({"CUDA_VISIBLE_DEVICES": "1"}) == {}
