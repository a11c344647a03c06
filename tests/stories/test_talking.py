"""Checks the messages that a user sees when an interactive program, a package, a script or a
function fails.
"""

from __future__ import annotations

import json

import pytest

from ciel_tests.clusters.stories import Stage

# --- packages -------------------------------------------------------------------------------------

GREP = {"handler": "stdinout", "args": {"command_line": ["grep", "-c", "x", {"__package__": "w"}]}}
PACKAGES: dict[str, object] = {
    "arguments-of-stdinout": {"start": {"handler": "stdinout", "args": {"command_line": "ls"}}},
    "arguments-of-env": {"start": {"handler": "env", "args": {"inputs": []}}},
    "arguments-of-proc": {"start": {"handler": "proc", "args": {"command": 7}}},
    "arguments-of-grab": {"start": {"handler": "grab", "args": {"urls": ["gopher://host/x"]}}},
    "arguments-of-swi": {"start": {"handler": "swi", "args": {}}},
    "arguments-of-sync": {"start": {"handler": "sync", "args": {"inputs": "all"}}},
    "arguments-of-init": {"start": {"handler": "init", "args": {}}},
    "arguments-of-python": {"start": {"handler": "python", "args": {}}},
    "unknown-executor": {"start": {"handler": "fortran", "args": {}}},
    "executor-left-out": {"start": {"handler": "dotnet", "args": {}}},
    "executor-that-lacks-something": {
        "package": {"f": {"filename": "words.txt"}},
        "start": {
            "handler": "skypy",
            "args": {"pyfile_ref": {"__package__": "f"}, "entry_point": "main"},
        },
    },
    "url-refused": {"start": {"handler": "grab", "args": {"urls": ["http://127.0.0.1:1/x"]}}},
    "one-result-of-two": {
        "start": {
            "handler": "env",
            "args": {"command_line": ["sh", "-c", "rm $(tail -1 $OUTPUT_FILES)"], "n_outputs": 2},
        }
    },
    "package-without-a-file": {"package": {"w": {"filename": "absent.txt"}}, "start": GREP},
    "package-without-an-entry": {"start": GREP},
    "package-with-a-typo": {"strat": GREP},
    "template-that-does-not-fit": {
        "start": {"handler": "stdinout", "args": {"command_line": ["echo", "hello"]}},
        "result": [{"__decode_ref__": "json"}],
    },
}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_user_of_a_package_sees_the_golden_text(stage: Stage, name: str) -> None:
    stage.add({"my.pack": json.dumps(PACKAGES[name]), "words.txt": "a b c\n"})
    stage.tell("ciel run my.pack").expect(name)


def test_a_package_that_is_not_json(stage: Stage) -> None:
    stage.add({"my.pack": '{"start": {\n  "handler": "stdinout"\n  "args": {}\n}}\n'})
    stage.tell("ciel run my.pack").expect("package-no-json")


# --- interactive programs -------------------------------------------------------------------------

TALKER = r"""#!/usr/bin/perl
my (undef, $say, undef, $hear) = @ARGV[-4 .. -1];
open(SAY, '>', $say); open(HEAR, '<', $hear); select(SAY); $| = 1;
sub told { read(HEAR, my $n, 4); read(HEAR, my $text, unpack('N', $n)); $text }
sub call { print SAY pack('N/a*', $_[0]) }
told();
"""
LASTING = 'call(\'["exit", {"keep_process": "no"}]\');'
PROGRAMS = {
    "protocol-broken": "print SAY qq(half of it is done\\n); sleep 9;",
    "protocol-left": "print STDERR qq(half of it is done\\n); close SAY; sleep 9;",
    "protocol-left-in-a-call": "print SAY pack('N', 50), '[['; exit 4;",
    "protocol-unknown-call": "call('[\"frobnicate\", {}]'); told();",
    "output-not-made": LASTING,
    "output-too-many": 'call(\'["open_output", {"index": 5}]\'); told();',
    "own-words": 'call(\'["error", {"report": "the moon is in the wrong phase"}]\'); told();',
    "ended-early": "print STDERR qq(cannot go on\\n); exit 3;",
    "child-of-no-executor": 'call(\'["spawn", {"executor_name": "fortran"}]\'); told();',
    "child-of-wrong-arguments": (
        'call(\'["spawn", {"executor_name": "grab", "args": {}}]\'); told();'
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_user_of_an_interactive_program_sees_the_golden_text(stage: Stage, name: str) -> None:
    package = {"start": {"handler": "proc", "args": {"command": "HOME/talker"}}}
    stage.add({"talker": TALKER + PROGRAMS[name], "my.pack": json.dumps(package)})
    stage.tell("ciel run my.pack").expect(name)


# --- scripts --------------------------------------------------------------------------------------

SCRIPTS = {
    "script-syntax": "x = 1;\ny = x +;\nreturn y;\n",
    "script-division": "function share(n) {\n  return 10 / n;\n}\nreturn share(0);\n",
    "script-unknown-name": "total = 1;\nreturn totl;\n",
    "script-child-failed": (
        "words = spawn_exec('stdinout', {'command_line': ['cat', '/no/words'], 'inputs': []}, 1);\n"
        "count = spawn_exec('stdinout', {'command_line': ['wc'], 'inputs': words}, 1);\n"
        "return *count[0];\n"
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_user_of_a_script_sees_the_golden_text(stage: Stage, name: str) -> None:
    stage.add({"my.sw": SCRIPTS[name]})
    stage.tell("ciel sw my.sw").expect(name)


# --- Python ---------------------------------------------------------------------------------------

CALLS = {
    "exception": (
        "def load(column):\n    return {'a': 1}[column]\n",
        "def total(column):\n    try:\n        return load(column)\n    except KeyError as error:\n"
        "        raise ValueError(f'there is no column {column!r}') from error\n",
        "client.submit(total, 'b').result()",
    ),
    "exit-in-a-function": ("import os\n", "client.submit(os._exit, 3).result()"),
    "result-without-bytes": (
        "class Lock:\n    def __reduce__(self):\n        raise TypeError('locks stay here')\n",
        "client.submit(Lock).result()",
    ),
    "failed-two-levels-down": (
        "def fetch():\n    raise OSError('the disk is on fire')\n",
        "def sort(lines):\n    return sorted(lines)\n",
        "client.submit(len, client.submit(sort, client.submit(fetch))).result()",
    ),
    "python-time-limit": (
        "import time\n",
        "client.submit(ciel.task(time.sleep, timeout_s=0.2), 60).result()",
    ),
    "program-failed-two-levels-down": (
        "job = client.job('three')",
        "first = job.run(['cat', '/no/words'], name='fetch')",
        "second = job.run(['sort'], inputs=[first], name='sort')",
        "third = job.run(['uniq', '-c'], inputs=[second], name='count')",
        "job.want([third])",
        "job.result(third)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_user_of_python_sees_the_golden_text(stage: Stage, name: str) -> None:
    *before, last = CALLS[name]
    defined = [text for text in before if text.endswith("\n")]
    inside = "\n    ".join([text for text in before if not text.endswith("\n")] + [last])
    text = f"import ciel\n{''.join(defined)}with ciel.Client() as client:\n    {inside}\n"
    stage.add({"my.py": text})
    stage.tell("python my.py").expect(name)
