"""Checks every call that orders memory: if one of them is omitted or weakened, a test must fail.

    python scc/tests/mutants.py scc/src/mpb.c scc/src/rcce.c --tests tests/scc/test_mpb.py -k strict
    python scc/tests/mutants.py --part shmfs --run 'shmfs_walk 12 300 20 0 1' scc/src/log.c

A mutant omits a flush, an invalidation or a fence, or turns a publish into a store or a look into a
load. With --tests, pytest takes the sources from a copy of `scc/` (CIEL_SCC_SOURCES); tests that do
not compile them with `ciel.testing.c_programs` see no mutants. With --run, programs of `scc/tests`
run with these arguments, in the strict build, until one fails; one file is compiled per mutant. A
call that the strict build omits, or never reaches since it has no clients that only read, may be
named by a model in a `fails:` line; .ci/check-deep runs the models. Prints a Markdown table of
mutants and the tests that catch them; fails if one is not caught.

Shows POOL-3.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SCC = Path(__file__).resolve().parents[1]
ROOT = SCC.parent
LIMIT_S = 300
RUN_LIMIT_S = 60  # of a program, which normally takes a few seconds
CALL = re.compile(r"\bport_(?:(flush|invalidate|fence)|(publish|look)(32|64))\b")
WEAKER = {"publish": "store", "look": "load"}
FLAGS = ["-std=c11", "-O1", "-w", "-D_GNU_SOURCE", "-DPORT_STRICT", "-DSCC_TEST", "-pthread"]
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
MODEL = re.compile(r"^/\* fails: (.+): (\S+) (\w+) (port_\w+) \*/$", re.MULTILINE)
HEAD = "| call | in | becomes | caught by |\n|---|---|---|---|"
NOTHING = "static inline void mutant_nothing(const void *first, ...) { (void)first; }\n"


@dataclass(frozen=True)
class Mutant:
    """A source file with one call omitted or weakened."""

    source: Path  # within `scc/`
    line: int
    function: str
    before: str
    after: str
    text: str  # of the whole file

    @property
    def place(self) -> str:
        return f"`{self.source.name}` {self.function}"

    def row(self, catcher: str | None) -> str:
        """Return the row of the table for this mutant."""
        caught = f"`{catcher}`" if catcher else "**nothing**"
        return f"| `{self.before}` | {self.place} | {self.after} | {caught} |"


def mutants(source: Path) -> Iterator[Mutant]:
    """Yield every mutant of one file."""
    text = source.read_text()
    hidden = [match.span() for match in COMMENT.finditer(text)]
    for match in CALL.finditer(text):
        if any(begin <= match.start() < end for begin, end in hidden):
            continue
        missing, weakened, bits = match.groups()
        after = "mutant_nothing" if missing else f"port_{WEAKER[weakened]}{bits}"
        head = text[: match.start()]
        yield Mutant(
            source.relative_to(SCC),
            head.count("\n") + 1,
            re.findall(r"^(?:\w[\w \*]*?)(\w+)\(", head, flags=re.MULTILINE)[-1],
            match.group(),
            "nothing" if missing else after,
            with_nothing(head + after + text[match.end() :]),
        )


def modelled() -> dict[tuple[str, str, str], str]:
    """Return the models that fail without a call, by file, function and call."""
    return {
        (source, function, call): f"{path.name} {defines}"
        for path in sorted((SCC / "models").glob("*.pml"))
        for defines, source, function, call in MODEL.findall(path.read_text())
    }


def with_nothing(text: str) -> str:
    """Insert the function that replaces an omitted call, after the first #include."""
    end = text.index("\n", text.index("#include")) + 1
    return text[:end] + NOTHING + f"#line {text[:end].count(chr(10)) + 1}\n" + text[end:]


def compiles(path: Path, tree: Path) -> bool:
    """Return whether a mutant compiles."""
    return not subprocess.run(["cc", "-fsyntax-only", *flags(tree), str(path)]).returncode


def flags(tree: Path) -> list[str]:
    """Return the compiler flags of the strict build."""
    return [*FLAGS, f"-I{tree / 'include'}", f"-I{tree / 'src'}"]


def caught_by(tests: list[str], tree: Path) -> str | None:
    """Run the tests on other sources; return the first that fails, None if all pass."""
    pytest = Path(sys.executable).with_name("pytest")
    command = [str(pytest), "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "CIEL_SCC_SOURCES": str(tree)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) \S*?::(\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode != 1 or not found:
        sys.exit(f"the tests did not run:\n{done.stdout}{done.stderr}")
    return found.group(1)


def ended(command: list[str]) -> int | None:
    """Run a program, then kill its children; return its exit status, None if it did not end."""
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, start_new_session=True)
    try:
        return process.wait(RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Runs:
    """Runs programs of `scc/tests` on mutants, without pytest."""

    def __init__(self, part: str, runs: list[str], place: Path) -> None:
        parts = runpy.run_path(str(SCC / "build_ffi.py"))["PARTS"]
        self.place = place
        self.runs = [shlex.split(run) for run in runs]
        names = [f"src/{name}.c" for name in (*parts[part], "strict")]
        tests = [f"tests/{name}.c" for name in sorted({run[0] for run in self.runs})]
        self.objects = {Path(name): place / f"{Path(name).stem}.o" for name in [*names, *tests]}
        for name, target in self.objects.items():
            self.compile((SCC / name).read_text(), target)

    def compile(self, text: str, target: Path) -> bytes:
        """Compile one file; return the object file's content."""
        command = ["cc", *flags(SCC), f"-I{SCC / 'tests'}", "-x", "c", "-c", "-o", str(target), "-"]
        subprocess.run(command, input=text, text=True, check=True)
        return target.read_bytes()

    def failure(self, source: Path | None, changed: Path | None, place: Path) -> str | None:
        """Return the first run that fails with one object file replaced, or None."""
        for run in self.runs:
            program = place / run[0]
            if not program.exists():
                objects = [
                    str(changed if name == source else target)
                    for name, target in self.objects.items()
                    if name.parts[0] == "src" or name.stem == run[0]
                ]
                subprocess.run(["cc", "-pthread", "-o", str(program), *objects], check=True)
            status = ended([str(program), *run[1:]])
            if status is None:
                return f"{' '.join(run)} (no end)"
            if status:
                return " ".join(run)
        return None

    def caught(self, mutant: Mutant) -> str | None:
        """Return the run, or the model, that catches a mutant."""
        with tempfile.TemporaryDirectory(dir=self.place) as name:
            place = Path(name)
            same = self.compile(with_nothing((SCC / mutant.source).read_text()), place / "same.o")
            model = modelled().get((mutant.source.name, mutant.function, mutant.before))
            if self.compile(mutant.text, place / "changed.o") == same:
                return model
            return self.failure(mutant.source, place / "changed.o", place) or model


def try_runs(options: argparse.Namespace) -> int:
    """Test each mutant with programs, in parallel; return the number of survivors."""
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="ciel-mutants-") as name:
        runs = Runs(options.part, options.run, Path(name))
        Path(name, "without").mkdir()
        if failed := runs.failure(None, None, Path(name, "without")):
            sys.exit(f"{failed} fails without any mutant")
        found = [mutant for source in options.sources for mutant in mutants(source.resolve())]
        print(HEAD, flush=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for mutant, catcher in zip(found, pool.map(runs.caught, found), strict=True):
                survivors += catcher is None
                print(mutant.row(catcher), flush=True)
    return survivors


def try_tests(options: argparse.Namespace) -> int:
    """Test each mutant with pytest; return the number of survivors."""
    tests = [*options.tests, *(["-k", options.chosen] if options.chosen else [])]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="ciel-mutants-") as place:
        tree = Path(place, "scc")
        shutil.copytree(SCC, tree, ignore=shutil.ignore_patterns("*.so", "bin", "__pycache__"))
        if failed := caught_by(tests, tree):
            sys.exit(f"{failed} fails without any mutant")
        print(HEAD, flush=True)
        for source in options.sources:
            for mutant in mutants(source.resolve()):
                changed = tree / mutant.source
                original = changed.read_text()
                changed.write_text(mutant.text)
                if not compiles(changed, tree):
                    sys.exit(f"{mutant.place}, line {mutant.line}: the mutant does not compile")
                test = caught_by(tests, tree)
                survivors += test is None
                changed.write_text(original)
                print(mutant.row(test), flush=True)
    return survivors


def main() -> None:
    """Test all mutants of the given files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--tests", nargs="+", help="test files for pytest")
    parser.add_argument("-k", dest="chosen", help="tests to select, for pytest")
    parser.add_argument("--part", default="shmfs", help="part of scc to link programs with")
    parser.add_argument("--run", action="append", help="a program of scc/tests, with arguments")
    options = parser.parse_args()
    if bool(options.tests) == bool(options.run):
        parser.error("give either --tests or --run, not both")
    act: Callable[[argparse.Namespace], int] = try_runs if options.run else try_tests
    if survivors := act(options):
        sys.exit(f"no test catches {survivors} mutants")


if __name__ == "__main__":
    main()
