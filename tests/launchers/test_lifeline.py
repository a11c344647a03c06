import subprocess
import sys

PROGRAM = """
from ciel.net import loop
loop.install()
from twisted.internet import reactor
from ciel.cli.daemons.lifeline import Lifeline

Lifeline(reactor, lambda line: print(line["key"], flush=True), reactor.stop, print)
reactor.run()
print("gone")
"""


def test_an_embedded_daemon_notices_the_end_of_its_parent_after_the_first_line() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write('{"key": "first"}\n')
        process.stdin.flush()
        assert process.stdout.readline() == "first\n"
        try:
            assert process.communicate(timeout=20)[0] == "gone\n"
        finally:
            process.kill()
    assert process.returncode == 0
