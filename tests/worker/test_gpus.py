"""Detection of GPUs, on trees of files as the drivers show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ciel.worker.gpus import Claims, find_gpus


def nvidia(root: Path, minor: int, *, bus: str, opens: bool = True, instances: int = 0) -> None:
    about = root / f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information"
    about.parent.mkdir(parents=True)
    about.write_text(
        f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 100\nGPU UUID: \t GPU-{minor}\n"
        f"Video BIOS: \t 96\nBus Location: \t 0000:{bus}:00.0\nDevice Minor: \t {minor}\n"
    )
    (root / "dev").mkdir(exist_ok=True)
    if opens:
        (root / f"dev/nvidia{minor}").touch()
    for number in range(instances):
        (root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{number}").mkdir(parents=True)


def amd(root: Path, node: int, *, units: int, renderer: int, opens: bool = True) -> None:
    about = root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties"
    about.parent.mkdir(parents=True)
    about.write_text(f"cpu_cores_count 0\nsimd_count {units}\ndrm_render_minor {renderer}\n")
    (root / "dev/dri").mkdir(parents=True, exist_ok=True)
    (root / "dev/kfd").touch()
    if opens and units:
        (root / f"dev/dri/renderD{renderer}").touch()


def test_a_host_without_drivers_has_no_gpus(tmp_path: Path) -> None:
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == []


def test_gpus_of_nvidia_are_counted_in_the_order_of_the_bus(tmp_path: Path) -> None:
    nvidia(tmp_path, 1, bus="0a")
    nvidia(tmp_path, 0, bus="4b")
    assert find_gpus({}, tmp_path) == ["0", "1"]


def test_a_gpu_that_cannot_be_opened_does_not_count(tmp_path: Path) -> None:
    nvidia(tmp_path, 0, bus="0a", opens=False)
    nvidia(tmp_path, 1, bus="4b")
    assert find_gpus({}, tmp_path) == ["0"], "programs see one device, and call it 0"


def test_a_gpu_that_is_divided_into_instances_is_not_offered(tmp_path: Path) -> None:
    nvidia(tmp_path, 0, bus="0a", instances=2)
    nvidia(tmp_path, 1, bus="4b")
    assert find_gpus({}, tmp_path) == ["1"]


def test_gpus_of_amd_are_the_nodes_with_compute_units(tmp_path: Path) -> None:
    amd(tmp_path, 0, units=0, renderer=0)
    amd(tmp_path, 10, units=304, renderer=129)
    amd(tmp_path, 9, units=304, renderer=128)
    amd(tmp_path, 11, units=304, renderer=130, opens=False)
    assert find_gpus({}, tmp_path) == ["0", "1"]


@pytest.mark.parametrize(
    "variables, found",
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f, GPU-9a"}, ["GPU-8f", "GPU-9a"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ["0"]),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, ["0"]),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, ["0", "1"]),
    ],
)
def test_the_variables_of_the_worker_restrict_what_it_finds(
    tmp_path: Path, variables: dict[str, str], found: list[str]
) -> None:
    for number in range(4):
        nvidia(tmp_path, number, bus=f"0{number}")
    assert find_gpus(variables, tmp_path) == found


def test_a_gpu_belongs_to_the_first_worker_that_claims_it() -> None:
    first, second = Claims(), Claims()
    try:
        assert first.claim(["test-0", "test-1"]) == ["test-0", "test-1"]
        assert second.claim(["test-1", "test-2"]) == ["test-2"]
        first.close()
        assert second.claim(["test-1"]) == ["test-1"]
    finally:
        first.close()
        second.close()
