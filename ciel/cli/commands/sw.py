"""`ciel sw`: runs, checks or formats a Skywriting script; without a script, starts a prompt."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ciel.cli.outcome import UsageError
from ciel.cli.parsing.parser import suggestion

VERBS = ("check", "fmt")


def main(prog: str, words: Sequence[str]) -> int:
    """Run the verb, a script, or the prompt. `./check` is a script with the name of a verb."""
    verb = words[0] if words else ""
    if verb in VERBS:
        from ciel.cli.skywriting.check import main as check_or_format

        return check_or_format(f"ciel sw {verb}", words[1:])
    from ciel.cli.skywriting.script import parse, run_script

    args = parse("ciel sw", words, needs_script=False)
    if args.script is not None:
        script = args.script[0]
        if not os.path.exists(script) and (hint := suggestion(script, VERBS)):
            raise UsageError(f"{script}: the file does not exist{hint}")
        return run_script(args, "ciel sw", *args.script)
    from ciel.cli.skywriting.prompt import run_prompt

    return run_prompt(args)
