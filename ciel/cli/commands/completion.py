"""`ciel completion SHELL`: prints a script by which a shell completes our command lines.

The script contains all commands and options, so that the shell starts no program of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import ciel
from ciel.cli.outcome import Status
from ciel.cli.output.printing import print_text
from ciel.cli.parsing.grammar import PROGRAM, Argument, Command, Option, programs
from ciel.cli.parsing.options import make_parser

_FILES: Final = "files"
_DIRECTORIES: Final = "directories"
_OF_VALUES: Final = {
    "FILE": _FILES, "SCRIPT": _FILES, "PACKAGE": _FILES, "JAR": _FILES, "DIR": _DIRECTORIES
}  # fmt: skip
"""What to complete, by the metavariables of the help texts."""

_WORDS_OF_VALUES: Final = {"JOB": ("last", "all"), "TASK": ("last",), "OBJECT": ("last",)}
_EPILOG = """\
bash looks for a file with the name of the command: link ciel-master, ciel-worker and sw-job to the
file of ciel. zsh searches the directories of $fpath; add ~/.zfunc to it.

  mkdir -p ~/.local/share/bash-completion/completions ~/.zfunc ~/.config/fish/completions
  ciel completion bash >~/.local/share/bash-completion/completions/ciel
  ciel completion zsh >~/.zfunc/_ciel
  ciel completion fish >~/.config/fish/completions/ciel.fish
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Print the script of a shell."""
    parser = make_parser("ciel completion", "Print what completes commands in a shell.", _EPILOG)
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_WRITERS), help="which shell")
    args = parser.parse_args(words)
    found = programs()
    name = f"made by `ciel completion {args.shell}` of ciel {ciel.__version__}"
    print_text("\n".join(_WRITERS[args.shell](found, name)))
    return Status.DONE


def _everything(found: Iterable[Command]) -> Iterator[Command]:
    for program in found:
        yield from program.with_verbs()


def _own_options(command: Command) -> list[Option]:
    if command.words != (PROGRAM,):
        return command.options
    return [
        Option(("-h", "--help"), "", (), "list the commands"),
        Option(("--version",), "", (), "tell the version"),
    ]


def _kind(value: str) -> str:
    """Return whether a metavariable stands for a file, a directory, or neither ("")."""
    return next((kind for name, kind in _OF_VALUES.items() if name in value.split()), "")


def _words_for(thing: Option | Argument, value: str) -> tuple[str, ...]:
    return thing.choices or _WORDS_OF_VALUES.get(value, ())


def _paths(commands: Iterable[Command]) -> str:
    """Return a pattern of `case` for all commands that consist of several words."""
    return "|".join(f"'{' '.join(c.words)}'" for c in commands if len(c.words) > 1)


def _sole_argument(command: Command) -> Argument | None:
    return command.arguments[0] if command.arguments else None


# --- bash -----------------------------------------------------------------------------------------

_BASH_HEAD = """\
_ciel() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    local path=${COMP_WORDS[0]##*/} verbs= options= words= kind= i
    COMPREPLY=()
    if [[ $current == = ]]; then
        current=
    elif [[ $previous == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] && { _ciel_files; return; }
    done
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${COMP_WORDS[i]}" in"""

_BASH_PATHS = """\
            path+=" ${COMP_WORDS[i]}" ;;
        *) break ;;
        esac
    done
    case "$path" in"""

_BASH_VALUES = """\
    esac
    case "$path $previous" in"""

_BASH_TAIL = """\
    *)
        if [[ $current == -* ]]; then
            COMPREPLY=($(compgen -W "$options" -- "$current"))
            return
        elif ((i == COMP_CWORD)) && [[ $verbs ]]; then
            words+=" $verbs"
        fi ;;
    esac
    [[ $words ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))
    case $kind in
    files) _ciel_files ;;
    directories) _ciel_files -d ;;
    esac
}

_ciel_files() {
    compopt -o filenames
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen ${1--f} -- "$current")
}
"""


def _bash(found: Sequence[Command], name: str) -> Iterator[str]:
    commands = list(_everything(found))
    yield f"# Completion for bash, {name}."
    yield _BASH_HEAD
    yield f"        {_paths(commands)})"
    yield _BASH_PATHS
    for command in commands:
        options = " ".join(name for option in _own_options(command) for name in option.names)
        verbs = " ".join(verb.words[-1] for verb in command.verbs)
        first = _sole_argument(command)
        words = " ".join(_words_for(first, first.name)) if first else ""
        kind = _kind(first.name) if first else ""
        yield f"    '{' '.join(command.words)}')"
        yield f"        verbs='{verbs}' options='{options}' words='{words}' kind={kind} ;;"
    yield _BASH_VALUES
    for command in commands:
        for option in _own_options(command):
            if option.value or option.choices:
                path = " ".join(command.words)
                words = " ".join(_words_for(option, option.value))
                cases = "|".join(f"'{path} {name}'" for name in option.names)
                yield f"    {cases})"
                yield f"        words='{words}' kind={_kind(option.value)} ;;"
    yield _BASH_TAIL
    yield f"complete -F _ciel {' '.join(command.words[0] for command in found)}"


# --- zsh ------------------------------------------------------------------------------------------

_ZSH_HEAD = """\
local path_=${words[1]:t} i
integer shifted=0
for ((i = 2; i < CURRENT; i++)); do
    case "$path_ ${words[i]}" in"""

_ZSH_PATHS = """\
        path_+=" ${words[i]}"; shifted=i-1 ;;
    *) break ;;
    esac
done
words=("$path_" "${(@)words[shifted+2,-1]}")
((CURRENT -= shifted))
case "$path_" in"""


def _zsh(found: Sequence[Command], name: str) -> Iterator[str]:
    commands = list(_everything(found))
    yield f"#compdef {' '.join(command.words[0] for command in found)}"
    yield f"# Completion for zsh, {name}."
    yield _ZSH_HEAD
    yield f"    {_paths(commands)})"
    yield _ZSH_PATHS
    for command in commands:
        yield f"'{' '.join(command.words)}')"
        if command.verbs:
            yield "    if ((CURRENT == 2)) && [[ ${words[2]} != -* ]]; then"
            rows = [_zsh_quoted(f"{_escaped(v.words[-1])}:{v.summary}") for v in command.verbs]
            yield f"        local -a verbs=({' '.join(rows)})"
            yield "        _describe command verbs"
            yield "    fi"
        specs = [spec for option in _own_options(command) for spec in _zsh_option(option)]
        first = _sole_argument(command)
        if first is not None:
            specs.append(f"*:{_escaped(first.name.lower())}:{_zsh_action(first, first.name)}")
        yield "    _arguments " + " ".join(map(_zsh_quoted, specs)) + " ;;"
    yield "esac"


def _zsh_option(option: Option) -> Iterator[str]:
    summary = re.sub(r"([\[\]\\:])", r"\\\1", option.summary)
    for name in option.names:
        if not option.value and not option.choices:
            yield f"{name}[{summary}]"
            continue
        value = _escaped(option.value.lower() or "value")
        joint = "=" if name.startswith("--") else ""
        yield f"*{name}{joint}[{summary}]:{value}:{_zsh_action(option, option.value)}"


def _zsh_action(thing: Option | Argument, value: str) -> str:
    if words := _words_for(thing, value):
        return f"({' '.join(words)})"
    return {_FILES: "_files", _DIRECTORIES: "_files -/"}.get(_kind(value), " ")


def _escaped(text: str) -> str:
    return text.replace(":", r"\:")


def _zsh_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --- fish -----------------------------------------------------------------------------------------

_FISH_HEAD = """\
function __ciel_at
    set -l words (commandline -opc)
    set words[1] (string replace -r '.*/' '' -- $words[1])
    set -l wanted (string split ' ' -- $argv[1])
    set -l count (count $wanted)
    test (count $words) -ge $count; or return 1
    test "$words[1..$count]" = "$argv[1]"; or return 1
    test "$argv[2]" != alone; or test (count $words) -eq $count
end"""


def _fish(found: Sequence[Command], name: str) -> Iterator[str]:
    yield f"# Completion for fish, {name}."
    yield _FISH_HEAD
    for program in found:
        yield f"complete -c {program.words[0]} -f"
    for command in _everything(found):
        path = " ".join(command.words)
        start = f"complete -c {command.words[0]}"
        for verb in command.verbs:
            about = _fish_quoted(verb.summary)
            yield f"{start} -n \"__ciel_at '{path}' alone\" -a {verb.words[-1]} -d {about}"
        only = " alone" if command.verbs else ""
        for option in _own_options(command):
            yield f"{start} -n \"__ciel_at '{path}'{only}\" {_fish_option(option)}"
        if (first := _sole_argument(command)) is not None:
            given = _fish_values(_words_for(first, first.name), _kind(first.name))
            yield f"{start} -n \"__ciel_at '{path}'{only}\" {given}"


def _fish_option(option: Option) -> str:
    parts = [f"{'-l' if name[1] == '-' else '-s'} {name.lstrip('-')}" for name in option.names]
    if option.value or option.choices:
        parts.append("-r")
        parts.append(_fish_values(_words_for(option, option.value), _kind(option.value)))
    return " ".join([*parts, "-d", _fish_quoted(option.summary)])


def _fish_values(words: Sequence[str], kind: str) -> str:
    if words:
        return f"-f -a {_fish_quoted(' '.join(words))}"
    return {_FILES: "-F", _DIRECTORIES: "-f -a '(__fish_complete_directories)'"}.get(kind, "-f")


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_WRITERS: Final[dict[str, Callable[[Sequence[Command], str], Iterator[str]]]] = {
    "bash": _bash, "zsh": _zsh, "fish": _fish
}  # fmt: skip
