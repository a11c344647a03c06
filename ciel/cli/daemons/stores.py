"""The options of the stores of workers."""

from __future__ import annotations

import argparse

from ciel.storage.interface import Verify


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the option for when objects are compared with their checksums."""
    parser.add_argument(
        "--verify",
        choices=[each.value for each in Verify],
        default=Verify.FIRST.value,
        help="compare a stored object with its checksum when its worker first reads it (default), "
        "always, or never",
    )
