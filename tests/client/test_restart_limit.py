"""Tests how often the master of a local cluster is restarted."""

from __future__ import annotations

from ciel.client.cluster.supervisor import RestartLimit


def test_restarts_are_permitted_up_to_the_limit() -> None:
    limit = RestartLimit(2, 10.0)
    assert [limit.permits(now_s) for now_s in (0.0, 1.0, 2.0)] == [True, True, False]


def test_restarts_that_are_long_past_do_not_count() -> None:
    limit = RestartLimit(2, 10.0)
    assert [limit.permits(now_s) for now_s in (0.0, 5.0, 9.9, 10.0, 14.9, 15.0)] == [
        True, True, False, True, False, True,
    ]  # fmt: skip


def test_a_refused_restart_does_not_count() -> None:
    limit = RestartLimit(1, 10.0)
    assert [limit.permits(now_s) for now_s in (0.0, 9.0, 10.0)] == [True, False, True]
