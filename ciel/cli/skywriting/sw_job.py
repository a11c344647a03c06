"""The program `sw-job`, which runs a Skywriting script. `main.run_command` imports its modules."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ciel.cli.main import run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script that the command line names; return the exit status, and never raise."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command("ciel.cli.skywriting.script", "sw-job", words, is_process=argv is None)


if __name__ == "__main__":
    sys.exit(main())
