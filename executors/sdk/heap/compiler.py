"""The command `ciel-cc`: clang, for C and C++ programs whose heap lies in a store (KVM-2).

Its options are those of clang. `--memory=heap` (the default) puts the heap into the store,
`--memory=full` variables of stacks and globals, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from ciel.executors.sdk.heap.building import NotBuiltError, link_flags, parts, toolchain

CPP_SUFFIXES: Final = (".cc", ".cpp", ".cxx", ".C", ".c++", ".cp", ".ii")
NOT_LINKING: Final = {"-c", "-S", "-E", "-M", "-MM", "-fsyntax-only", "--version", "-v", "-###"}
NOT_TRANSLATED: Final = {"-E", "-M", "-MM", "-fsyntax-only", "--version"}
USAGE: Final = """\
usage: ciel-cc [--memory=heap|full] OPTION... FILE...
       ciel-cc --check

Compiles and links C and C++ programs with clang, whose options it takes. The heap of the program
lies in the store that CIEL_HEAP names when the program runs:

  CIEL_HEAP=kv:NAME             a key-value base (CIEL_KV)
  CIEL_HEAP=memory:VOLUME       memory of other machines
  CIEL_HEAP=lmdb:DIRECTORY      a directory
  CIEL_HEAP_RAM=64MiB           how much of it may be in memory
  CIEL_HEAP_ALLOCATOR=first-fit or bump

With --memory=full, variables of stacks and globals lie there, too. Without CIEL_HEAP, everything
lies in memory. `--check` says which LLVM is used, or what is missing. See docs/heap.md.
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Become clang; exit with status 2 after a message if that cannot work."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given == ["--help"]:
        print(USAGE, end="")
        sys.exit(0 if given else 2)
    try:
        if given == ["--check"]:
            print(f"LLVM {toolchain().version}")
            sys.exit(0)
        command, memory = command_of(given)
    except (NotBuiltError, ValueError) as error:
        print(f"ciel-cc: {error}", file=sys.stderr)
        sys.exit(2)
    os.execve(command[0], command, {**os.environ, "CIEL_CC_MEMORY": memory})


def command_of(given: Sequence[str]) -> tuple[list[str], str]:
    """Return the command of clang, and the kind of translation.

    Raises ValueError for options that cannot work, and NotBuiltError.
    """
    memory, options = _memory_of(given)
    for option in ("-static", "-static-pie", "-m32"):
        if option in options:
            raise ValueError(f"{option} does not work: the run-time replaces functions of libc")
    tools = toolchain()
    is_cpp = any(option.endswith(CPP_SUFFIXES) for option in options if option[:1] != "-")
    command = [tools.clangxx if is_cpp or "-lstdc++" in options else tools.clang, *options]
    if not NOT_TRANSLATED.intersection(options):
        command.append(f"-fpass-plugin={parts().pass_library}")
        if not any(option.startswith("-g") for option in options):
            command.append("-gline-tables-only")  # errors of the pass name lines
        command.append("-U_FORTIFY_SOURCE")  # its functions are other ones than the run-time's
    if not NOT_LINKING.intersection(options) and "-shared" not in options and _has_input(options):
        command += [str(parts().runtime), *link_flags()]
    command += [f"-I{Path(__file__).parent.resolve()}", "-Wno-unused-command-line-argument"]
    return command, memory


def _memory_of(given: Sequence[str]) -> tuple[str, list[str]]:
    memory = "heap"
    options = []
    for option in given:
        if option.startswith("--memory="):
            memory = option.removeprefix("--memory=")
        else:
            options.append(option)
    if memory not in ("heap", "full"):
        raise ValueError(f"--memory={memory} must be heap or full")
    return memory, options


def _has_input(options: Sequence[str]) -> bool:
    follows = {"-o", "-I", "-D", "-U", "-L", "-include", "-x", "-isystem", "-MF", "-MT", "-MQ"}
    return any(
        option[:1] != "-" and (not index or options[index - 1] not in follows)
        for index, option in enumerate(options)
    )


if __name__ == "__main__":
    main()
