"""Runs the input of a user at the prompt of `python -i` and in a Jupyter kernel, exactly as
typed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

from ciel import Client
from ciel.testing.homes import HandCluster

PREPARED = """
from pathlib import Path
import dask, joblib
for name in ("one", "two"):
    _ = Path(name).write_text("a\\nb\\na\\n")

paths = [Path(name).absolute() for name in ("one", "two")]

def count(path):
    return len(path.read_text().split())

def add(x, y):
    return x + y

def work(x):
    return x + 1

x = 41
graph = dask.delayed(add)(1, 2)

"""
TYPED = """
import ciel

@ciel.task
def fib(n: int) -> int:
    return n if n < 2 else ciel.call(add, fib.spawn(n - 1), fib.spawn(n - 2))  # delegates

with ciel.Client() as c:                      # embedded if no cluster is found
    print(sum(c.map(count, paths)))
    f = c.submit(fib, 20); print(f.result())
    f2 = c.put(paths[0].read_bytes())
    out = c.run(["sort", "-u"], stdin=f2, outputs=1)       # any program, with objects as files
    print(out.result())

with ciel.Executor() as ex: print(ex.submit(work, x).result())

c = ciel.Client()
with joblib.parallel_backend("ciel"):
    print(joblib.Parallel(n_jobs=2)(joblib.delayed(work)(n) for n in range(3)))

print(dask.compute(graph, scheduler=ciel.dask.get))
with ciel.multiprocessing.Pool() as pool: print(pool.map(work, range(3)))

"""
SAID = "6\n6765\nb'a\\nb\\n'\n42\n[1, 2, 3]\n(3,)\n[1, 2, 3]\n"


ANEW = """
import ciel
c = ciel.Client()
def helper(x):
    return x + scale

scale = 1
def f(x):
    return helper(x)

print(c.submit(f, 1).result())
scale = 10
print(c.submit(f, 1).result())
def helper(x):
    return -x

print(c.submit(f, 1).result(), list(c.map(f, range(3))))
"""


def test_functions_called_before_see_names_that_are_typed_again(
    client: Client, cluster: HandCluster, tmp_path: Path
) -> None:
    del client  # its address is in the environment
    ended = subprocess.run(
        [sys.executable, "-q", "-i"], input=ANEW + "c.close()\n", cwd=tmp_path,
        env=cluster.home.environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.stdout, ended.returncode) == ("2\n11\n-1 [0, -1, -2]\n", 0), ended.stderr


@pytest.mark.slow
def test_typed_input_runs_at_the_prompt_of_python(
    client: Client, cluster: HandCluster, tmp_path: Path
) -> None:
    del client  # its address is in the environment
    ended = subprocess.run(
        [sys.executable, "-q", "-i"], input=PREPARED + TYPED + "c.close()\n", cwd=tmp_path,
        env=cluster.home.environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.stdout, ended.returncode) == (SAID, 0), ended.stderr
    assert "Error" not in ended.stderr


@pytest.fixture
def cells(cluster: HandCluster, tmp_path: Path) -> Any:
    """Run cells of a notebook; return their output and the value of the last one."""
    environ = cluster.home.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    manager, kernel = start_new_kernel(
        startup_timeout=60, kernel_name="python3", env=environ, cwd=str(tmp_path)
    )

    def run(code: str) -> str:
        told: list[str] = []

        def hear(message: Any) -> None:
            content = message["content"]
            told.append(content.get("text") or content.get("data", {}).get("text/plain") or "")

        answer = kernel.execute_interactive(code, timeout=60, output_hook=hear)
        assert answer["content"]["status"] == "ok", answer["content"]
        return "".join(told)

    yield run
    kernel.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_typed_input_runs_in_a_notebook(cells: Any) -> None:
    cells(PREPARED)
    assert cells(TYPED) == SAID
    assert cells("value = await c.submit(work, x)\nvalue") == "42"
    assert cells(
        "import asyncio\nawait asyncio.gather(*[c.submit(work, n) for n in range(3)])"
    ) == ("[1, 2, 3]")
    cells("c.close()")
