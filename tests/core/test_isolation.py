"""Tests which tasks a worker can isolate as they ask, and what a wrong level or image is."""

import pytest

from ciel.core.tasks import Isolation, Needs, is_below, wrong_image, wrong_isolation

NO_NAMESPACES = Isolation("limits", {"strict": "no user namespaces"})


@pytest.mark.parametrize(
    "isolation, needs, expected",
    [
        (Isolation("limits"), Needs(), ""),
        (Isolation("limits"), Needs(isolate="strict"), ""),
        (Isolation("limits"), Needs(isolate="none"), "isolates programs at least by 'limits'"),
        (Isolation("none"), Needs(isolate="none"), ""),
        (NO_NAMESPACES, Needs(isolate="strict"), "no user namespaces"),
        (NO_NAMESPACES, Needs(), ""),
        (NO_NAMESPACES, Needs(image="tools", isolate="strict"), ""),
        (Isolation(lacking={"podman": "no podman"}), Needs(image="tools"), "podman: no podman"),
        (Isolation(lacking={"podman": "no podman"}), Needs(image="tools.sif"), ""),
        (Isolation(lacking={"apptainer": "none"}), Needs(image="a.sif"), "apptainer: none"),
    ],
)
def test_a_worker_says_why_it_cannot_isolate_a_task(
    isolation: Isolation, needs: Needs, expected: str
) -> None:
    why = isolation.why_not(needs)
    assert why.startswith(expected)
    assert bool(why) == bool(expected)


def test_levels_are_ordered() -> None:
    assert is_below("none", "limits")
    assert is_below("limits", "strict")
    assert not is_below("strict", "strict")


def test_wrong_levels_and_images_are_explained() -> None:
    assert "none, limits or strict" in wrong_isolation("total")
    assert not wrong_isolation("strict")
    assert "begin with '-'" in wrong_image("--privileged")
    assert not wrong_image("localhost/tools:1")
