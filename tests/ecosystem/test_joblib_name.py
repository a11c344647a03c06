"""Checks that joblib knows the backend "ciel", whichever of the two packages is imported first, and
that the import hook has no other effect.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ciel
from ciel import Client
from ciel.testing.homes import HandCluster

ROOT = Path(ciel.__file__).parents[1]
ASKED = """
with joblib.parallel_config("ciel"):
    print(joblib.Parallel(n_jobs=2)(joblib.delayed(pow)(n, 2) for n in range(3)))
print(joblib.Parallel(n_jobs=2, backend="ciel")(joblib.delayed(abs)(-n) for n in range(3)))
"""
ANSWERED = "[0, 1, 4]\n[0, 1, 2]\n"

Run = Callable[..., str]


@pytest.fixture
def run(client: Client, cluster: HandCluster, tmp_path: Path) -> Run:
    del client  # its address is in the environment

    def run(script: str, *options: str) -> str:
        ended = subprocess.run(
            [sys.executable, *options, "-c", script], cwd=tmp_path, env=cluster.home.environ,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "begin",
    [
        "import ciel; import joblib",
        "import joblib; import ciel",
        "import ciel; c = ciel.Client(); import joblib",
        "import joblib.parallel; import ciel.joblib",
        "import ciel.joblib; import joblib",
        "import ciel, importlib.util; importlib.util.find_spec('joblib'); import joblib",
        "import ciel, joblib, importlib; importlib.reload(ciel); importlib.reload(joblib)",
        "import sys, ciel; del sys.modules['ciel'], sys.modules['ciel.joblib_name']; "
        "import ciel, joblib",
    ],
)
def test_the_backend_is_known_whichever_package_is_imported_first(run: Run, begin: str) -> None:
    assert run(begin + ASKED) == ANSWERED


def test_joblib_is_loaded_exactly_as_without_the_hook(run: Run) -> None:
    said = run(
        "import sys, importlib.util, importlib.resources\n"
        "before = list(sys.meta_path)\n"
        "import ciel\n"
        "assert 'joblib' not in sys.modules\n"
        "spec = importlib.util.find_spec('joblib')\n"
        "import joblib\n"
        "ours = [f for f in sys.meta_path if type(f).__module__ != 'ciel.pure']\n"
        "assert ours == before, sys.meta_path\n"
        "loader = importlib.machinery.SourceFileLoader\n"
        "assert type(joblib.__loader__) is type(spec.loader) is loader\n"
        "assert 'exec_module' not in vars(joblib.__loader__)\n"
        "assert joblib.__spec__.origin == spec.origin == joblib.__file__\n"
        "assert importlib.resources.files('joblib').joinpath('parallel.py').is_file()\n"
        "assert importlib.reload(joblib) is joblib\n"
        "print('ciel.joblib' in sys.modules, 'ciel.client' in sys.modules)"
    )
    assert said == "False False\n"


def test_without_joblib_the_hook_has_no_effect(run: Run) -> None:
    said = run(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import ciel, importlib.util\n"
        "print(importlib.util.find_spec('joblib'))\n"
        "try: import joblib\n"
        "except ModuleNotFoundError as error: print(error)",
        "-I", "-S",
    )  # fmt: skip
    assert said == "None\nNo module named 'joblib'\n"


def test_another_module_called_joblib_is_not_changed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "joblib.py").write_text("value = 7")
    assert run("import ciel, joblib; print(joblib.value)") == "7\n"


def test_an_exception_while_importing_joblib_is_raised_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "joblib.py").write_text("1 / 0")
    said = run(
        "import ciel\n"
        "for _ in range(2):\n"
        "    try: import joblib\n"
        "    except ZeroDivisionError as error: print(error)"
    )
    assert said == "division by zero\n" * 2
