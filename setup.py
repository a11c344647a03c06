"""What pyproject.toml cannot say: where the rooms lie, and how the launcher is compiled.

Rooms at the top of the tree are imported as `ciel.<room>`. The links in `ciel/` serve static tools
and running from a checkout; the build does not depend on them.
"""

import os
import shlex
import subprocess
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOMS = ("executors", "shm", "skywriting")
LAUNCHER_FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]


class BuildWithLauncher(build_py):
    """Compile the launcher: beside its source when editable, else into the wheel."""

    def run(self):
        super().run()
        home = Path("ciel/launch") if self.editable_mode else Path(self.build_lib, "ciel/launch")
        home.mkdir(parents=True, exist_ok=True)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        source = "ciel/launch/launcher.c"
        subprocess.run(
            [*compiler, *LAUNCHER_FLAGS, "-o", str(home / "ciel-launcher"), source], check=True
        )


class PlatformWheel(bdist_wheel):
    """The wheel holds a program but no extension module: any Python 3, this platform only."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


room_packages = [
    f"ciel.{room}{'.' + sub if sub else ''}" for room in ROOMS for sub in ["", *find_packages(room)]
]
setup(
    packages=[*(p for p in find_packages(include=["ciel", "ciel.*"])), *room_packages],
    package_dir={"ciel": "ciel"} | {f"ciel.{room}": room for room in ROOMS},
    package_data={
        "ciel": ["py.typed"],
        "ciel.launch": ["launcher.c"],
        "ciel.executors.sdk": ["c/*"],
        "ciel.skywriting": ["grammar.txt", "library/*.sw"],
    },
    cmdclass={"build_py": BuildWithLauncher, "bdist_wheel": PlatformWheel},
    distclass=BinaryDistribution,
)
