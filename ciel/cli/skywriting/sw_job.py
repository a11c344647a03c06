"""The program `sw-job`, which runs a Skywriting script. It imports nothing before `main.start`
does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ciel.cli.main import start


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script that the command line names; return the exit status, and never raise."""
    words = list(sys.argv[1:] if argv is None else argv)
    return start("ciel.cli.skywriting.script", "sw-job", words, is_process=argv is None)


if __name__ == "__main__":
    sys.exit(main())
