"""The program `ciel`: runs the command that the first argument names.

It imports only the module of that command.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module

from ciel import __version__

COMMANDS = {
    "submit": ("submit", "run one program, or an array of them, as a job"),
    "run": ("run", "run a package file and print its result"),
    "sw": ("sw", "run, check or format a Skywriting script; without arguments: a prompt"),
    "java": ("java", "run a Java class as a job"),
    "up": ("up", "start a local cluster in the background"),
    "down": ("up", "end the local cluster"),
    "status": ("status", "show the cluster, its workers and jobs"),
    "browse": ("status", "open the cluster's web pages in a browser"),
    "job": ("job", "list jobs, their output and logs; wait for, cancel, retry, remove them"),
    "task": ("task", "list the tasks of a job, show one, explain why it waits or failed"),
    "object": ("object", "store files in the cluster; list, show, get, remove objects"),
    "flight": ("flight", "serve tables to clients of Arrow Flight"),
    "worker": ("worker", "list the workers, and drain one"),
    "launcher": ("launcher", "show what a launcher of workers has asked for, and why"),
    "master": ("master", "restart the master"),
    "memory": ("memory.command", "volumes over the memory of other machines"),
    "kv": ("kv.command", "read and change the key-value base of the cluster"),
    "store": ("store", "show the contents and the activity of the workers' stores"),
    "bridge": ("shared_memory.bridge", "join the networks of kernels that share only memory"),
    "shmd": ("shared_memory.shmd", "serve a block store to programs, without a worker"),
    "shmfs": ("shared_memory.shmfs", "show shared memory as a directory"),
    "journal": ("journal", "check and show the journal of a master"),
    "config": ("config", "show the settings, and where each is set"),
    "key": ("key", "print the key of a role, for programs that use HTTP"),
    "debug": ("debug", "examine the daemons of a cluster that hangs"),
    "doctor": ("doctor", "find faults of an installation, and show how to repair them"),
    "completion": ("help.completion", "print a completion script for bash, zsh or fish"),
    "man": ("help.man", "write the manual pages"),
}
_USAGE = "usage: ciel COMMAND [OPTION…] [ARG…]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; return the exit status. Raises nothing."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        return _print_text(f"ciel {__version__}")
    if words and words[0] in ("-h", "--help", "help"):
        return _print_text(_help())
    if not words:
        print(_help(), file=sys.stderr)
        return 2
    name, *rest = words
    if name not in COMMANDS:
        from ciel.cli.parsing.parser import suggestion

        unknown = f"there is no command {name!r}{suggestion(name, COMMANDS)}"
        print(f"ciel: {unknown}; ciel --help lists them", file=sys.stderr)
        return 2
    module = f"ciel.cli.commands.{COMMANDS[name][0]}"
    return run_command(module, name, rest, is_process=argv is None)


def _print_text(text: str) -> int:
    """Print a text; return the exit status, which is 1 if standard output cannot be written."""
    from ciel.cli.outcome import conclude
    from ciel.cli.output.printing import print_text

    def command() -> int:
        print_text(text)
        return 0

    return conclude(command)


def run_command(module: str, name: str, words: Sequence[str], *, is_process: bool) -> int:
    """Run `main` of a command's module; return the exit status. Raises nothing.

    `is_process`: the process runs only this command.
    """
    if is_process:
        gc.disable()  # imports create no garbage, and collections take a tenth of the start time
    try:
        from ciel.cli.outcome import conclude  # which imports the client
    except KeyboardInterrupt:  # the import takes a while
        return 130

    def command() -> int:
        run = import_module(module).main
        if is_process:
            gc.freeze()
            gc.enable()
        return int(run(name, words))

    status = conclude(command)
    if is_process:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the exit is left
    return status


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            _USAGE,
            "",
            "Runs graphs of ordinary programs on a cluster, or on this computer alone.",
            "",
            *rows,
            "",
            "`ciel COMMAND --help` describes it. The daemons are ciel-master and ciel-worker.",
            "Exit status: 0 done, 1 the job failed, 2 usage, 3 no master or access denied,",
            "4 cancelled, 5 timed out, 130 interrupted.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
