from pathlib import Path

import pytest

from ciel.launch.memory import memory_of_host

KIB = 1024
MEMINFO = "MemTotal:        8000 kB\nMemFree:          10 kB\n"


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_host_without_groups_has_its_memory(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    assert memory_of_host(tmp_path) == 8000 * KIB


@pytest.mark.parametrize(
    "groups, files, expected",
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4096000"}, 4096000),
        ("0::/a/b\n", {"a/b/memory.max": "max", "memory.max": "max"}, 8000 * KIB),
        ("0::/a\n", {"a/memory.max": "99999999999"}, 8000 * KIB),
        ("0::/gone\n", {"memory.max": "5000"}, 5000),
        ("3:cpu:/x\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "7000\n"}, 7000),
        ("4:memory:/../up\n", {"memory/memory.limit_in_bytes": "6000"}, 6000),
    ],
)
def test_the_smallest_limit_of_a_control_group_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int
) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/cgroup", groups)
    for name, text in files.items():
        put(tmp_path, f"sys/fs/cgroup/{name}", text)
    assert memory_of_host(tmp_path) == expected


def test_unknown_memory_is_reported_as_zero(tmp_path: Path) -> None:
    assert memory_of_host(tmp_path) == 0


def test_the_memory_of_this_host_is_found() -> None:
    assert memory_of_host() > 1 << 27
