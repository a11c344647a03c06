"""Tests the command by which a master starts the next one."""

from __future__ import annotations

import sys

from ciel.cli.daemons.master import LISTEN_FD, successor_of

ARGV = ["python3", "-P", "/bin/ciel-master", "--listen", "127.0.0.1:0", "--journal", "j"]


def test_a_successor_has_the_same_options_and_the_socket() -> None:
    again = successor_of(ARGV, 12)
    assert again == [sys.executable, *ARGV[1:], LISTEN_FD, "12"]
    assert successor_of(again, 13) == [*again[:-1], "13"]


def test_a_successor_has_the_same_key() -> None:
    argv = [*ARGV, "--new-key"]
    assert successor_of(argv, 12) == [sys.executable, *ARGV[1:], LISTEN_FD, "12"]
