"""The parts of the build that pyproject.toml cannot express: the packages' directories, and C code.

The packages at the top of the tree are imported as `ciel.<package>`. The links in `ciel/` serve
static tools and programs that run from a checkout; the build does not depend on them.
"""

import copy
import functools
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

TOP_LEVEL_PACKAGES = ("executors", "scc", "shm", "skywriting")
PROGRAM_FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
POOL_FLAGS = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
POOL_FLAGS += ["-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"]
PAGES = sorted([*Path("ciel/memory").glob("*.c"), *Path("ciel/memory/server").glob("*.c")])
SHMDC = "executors/sdk/c/shmdc.c"
TABLES = ["executors/sdk/c/ciel_table.c", "ciel/arrow/holding.c", "-Iexecutors/sdk/c"]
PARTS = runpy.run_path("scc/build_ffi.py")

# Programs that a wheel installs on the PATH; `make dev` links them. Each has one source file with
# `main`; the other sources in the directory, and the core of shmfs, are linked into all of them.
TOOLS_HOME = Path("scc/bin")
TOOL_FLAGS = ["-Iscc/include", "-Iscc/src", "-pthread"]
_TOOL_SOURCES = sorted(Path("scc/tools").glob("*.c"))
TOOLS = [p for p in _TOOL_SOURCES if p.stem.startswith("shm") or p.stem == "drop_caches"]
_LIBRARY = [
    source for part in ("shmfs", "mpb", "device") for source in PARTS["sources"](part, "coherent")
]
CORE = [*dict.fromkeys(_LIBRARY), *(p for p in _TOOL_SOURCES if p not in TOOLS)]


# mypyc compiles these in wheels and for `make compiled`: the packages with state machines, and the
# modules that handle every task. An editable installation runs the same sources uncompiled. Modules
# of errors are not compiled, since their classes have several bases. A compiled class must not
# inherit from a class that is written in C or belongs to another project: the compiler does not see
# that base, and drops it. Subclasses of compiled classes must be compiled, too.
COMPILED_PACKAGES = (
    "ciel/core",
    "ciel/wire",
    "ciel/master/state",
    "ciel/state/server",
    "ciel/worker/state",
)
COMPILED_MODULES = (
    "ciel/execution/attempt.py",
    "ciel/execution/conversation.py",
    "ciel/execution/outputs.py",
    "ciel/executors/arguments.py",
    "ciel/executors/conversation.py",
    "ciel/executors/nested.py",
    "ciel/executors/python_calls.py",
    "ciel/journal/groups.py",
    "ciel/master/service.py",
    "ciel/master/write_ahead.py",
    "ciel/net/channels.py",
    "ciel/net/control.py",
    "ciel/net/flight_recorder.py",
    "ciel/net/iteration.py",
    "ciel/net/sessions.py",
    "ciel/net/ticks.py",
    "ciel/original/java2_calls.py",
    "ciel/testing/fake_attempt.py",
    "ciel/worker/attempt_reports.py",
    "ciel/worker/attempts/attempts.py",
    "ciel/worker/attempts/batch.py",
    "ciel/worker/attempts/lifecycle.py",
    "ciel/worker/attempts/program_files.py",
    "ciel/worker/attempts/scratch.py",
    "ciel/worker/events.py",
    "ciel/worker/interactive/attempt.py",
    "ciel/worker/interactive/channel.py",
    "ciel/worker/interactive/outgoing.py",
    "ciel/worker/interactive/printed.py",
    "ciel/worker/interactive/process.py",
    "ciel/worker/interactive/programs.py",
    "ciel/worker/master_session.py",
    "ciel/worker/service.py",
)
UNCOMPILED = ("__init__.py", "errors.py")
QUERY_COMMANDS = {"egg_info", "dist_info", "sdist"}  # these commands build nothing
# Ignore packages that are installed beside the compiler: pip builds in an environment without them.
TYPE_OPTIONS = ["--config-file=", f"--cache-dir={os.devnull}", "--ignore-missing-imports"]
TYPE_OPTIONS += ["--no-site-packages"]


COMPILER = ["mypy==2.4.1"]
COMPILED_OPTION = os.environ.get("CIEL_COMPILED")
"""1: compile; 0: do not compile; not set: compile unless the installation is editable."""


@functools.cache
def compiled_by_mypyc():
    """Return the extensions that mypyc creates. Only builds call this: it takes half a minute."""
    if COMPILED_OPTION != "1" and (COMPILED_OPTION == "0" or "editable_wheel" in sys.argv):
        return []
    from mypyc.build import mypycify

    def modules_in(*rooms):
        paths = [path for room in rooms for path in sorted(Path(room).rglob("*.py"))]
        return [str(path) for path in paths if path.name not in UNCOMPILED]

    for room in TOP_LEVEL_PACKAGES:  # a source archive has no links
        if not Path("ciel", room).exists():
            Path("ciel", room).symlink_to(Path("..", room))
    below = modules_in(*COMPILED_PACKAGES[:2])
    above = [*modules_in(*COMPILED_PACKAGES[2:]), *COMPILED_MODULES]
    libraries = [(below, "ciel.compiled_below"), (above, "ciel.compiled_above")]  # one a processor
    level = os.environ.get("CIEL_OPTIMIZE", "2")
    options = {"opt_level": level, "debug_level": "0", "separate": libraries}
    return mypycify([*TYPE_OPTIONS, *below, *above], **options)


def library_flags(name):
    """Return the compiler's options for a library, or nothing on hosts without it."""
    asked = ["pkg-config", "--cflags", "--libs", name]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []


LIBFUSE = library_flags("fuse3")
_SECCOMP_FLAGS = library_flags("libseccomp")
LIBSECCOMP = ["-DHAS_SECCOMP", *_SECCOMP_FLAGS] if _SECCOMP_FLAGS else []
"""Without it, workers offer no strict isolation, and say so."""
HAS_PYTHON_HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()
"""Without them, modules in C cannot be compiled; cffi then loads libraries, by slower calls."""
PROGRAMS = [*(tool.stem for tool in TOOLS), "shmdc", *(["shmfs-fuse"] if LIBFUSE else [])]


def run_compiler(*arguments, **options):
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, *PROGRAM_FLAGS, *map(str, arguments)], check=True, **options)


class BuildWithPrograms(build_py):
    """Compile the launcher, beside its source when editable, else into the wheel; and the tools."""

    def run(self):
        super().run()
        home = Path("." if self.editable_mode else self.build_lib, "ciel/launch")
        home.mkdir(parents=True, exist_ok=True)
        run_compiler("-o", home / "ciel-launcher", "ciel/launch/launcher.c")
        run_compiler("-o", home / "ciel-isolate", "ciel/launch/isolate.c", *LIBSECCOMP)
        rooms = Path(".") if self.editable_mode else Path(self.build_lib, "ciel")
        self.build_c_loader(rooms / "executors/programs")
        self.build_java_sdk(rooms / "executors/sdk/java")
        self.build_tools()
        self.build_shmdc(rooms / "executors/sdk/lib")
        built = Path("." if self.editable_mode else self.build_lib, "ciel")
        for home, name, sources in (("arrow", "tables", TABLES), ("memory", "pages", PAGES)):
            (built / home).mkdir(parents=True, exist_ok=True)
            run_compiler(
                "-shared", "-fPIC", "-pthread", "-o", built / home / f"{name}.so", *sources
            )
        self.build_store_pool(built / "arrow")
        if not HAS_PYTHON_HEADERS:
            self.build_libraries(rooms / "scc")

    def build_libraries(self, home):
        """Build libraries that cffi loads without a module in C, and the declarations of each."""
        for part in PARTS["PARTS"]:
            text = PARTS["explicit_declarations"](
                part, lambda source, program: run_compiler(*TOOL_FLAGS, "-o", program, source)
            )
            Path(home, f"_{part}.declarations").write_text(text)
        for name, (part, build) in PARTS["BUILDS_BY_NAME"].items():
            macros = [] if build == "coherent" else [f"-DPORT_{build.upper()}"]
            options = [*TOOL_FLAGS, *macros, "-shared", "-fPIC"]
            run_compiler(*options, "-o", home / f"{name}.so", *PARTS["sources"](part, build))

    def build_c_loader(self, home):
        home.mkdir(parents=True, exist_ok=True)
        run_compiler("-o", home / "ciel-cso", "executors/sdk/c/cso.c", "-ldl")

    def build_java_sdk(self, home):
        """Build the SDK for Java, which includes the loader of `java`, where there is a compiler
        for it; else workers compile the loader each time.
        """
        javac = shutil.which("javac")
        if javac is None:
            return
        with tempfile.TemporaryDirectory() as classes:
            sources = sorted(Path("executors/sdk/java/src").rglob("*.java"))
            command = [javac, "--release", "11", "-proc:none", "-encoding", "UTF-8", "-d", classes]
            subprocess.run([*command, *map(str, sources)], check=True)
            home.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(home / "ciel-sdk.jar", "w", zipfile.ZIP_DEFLATED) as jar:
                for path in sorted(Path(classes).rglob("*.class")):
                    jar.write(path, path.relative_to(classes))

    def build_shmdc(self, home):
        """Build the client of a block store's daemon: the library, and the command."""
        home.mkdir(parents=True, exist_ok=True)
        library = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libshmdc.so"]
        run_compiler(*library, "-pthread", "-o", home / "libshmdc.so", SHMDC)
        command = SHMDC.replace(".c", "_command.c")
        run_compiler("-pthread", "-o", TOOLS_HOME / "shmdc", command, SHMDC)

    def build_store_pool(self, home):
        """Build the memory pool for Arrow where there is a compiler for C++; else tables that tasks
        return are copied once.
        """
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        if shutil.which(compiler[0]) is None:
            return
        options = [*POOL_FLAGS, "-o", home / "store-pool.so"]
        subprocess.run([*compiler, *options, "ciel/arrow/store_pool.cpp"], check=True)

    def build_tools(self):
        TOOLS_HOME.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as objects, ThreadPoolExecutor(os.cpu_count()) as pool:

            def compiled(source):
                target = Path(objects, f"{source.stem}.o")
                run_compiler(*TOOL_FLAGS, "-c", "-o", target, source)
                return target

            core = list(pool.map(compiled, CORE))

            def link(source):
                run_compiler(*TOOL_FLAGS, "-o", TOOLS_HOME / source.stem, source, *core)

            list(pool.map(link, TOOLS))
            if LIBFUSE:
                mount = [*Path("scc/fuse").glob("*.c"), *core]
                run_compiler(*TOOL_FLAGS, "-o", TOOLS_HOME / "shmfs-fuse", *mount, *LIBFUSE)


class BuildApart(build_ext):
    """Several modules are made of the same sources: each has a folder to itself, all at once."""

    def finalize_options(self):
        if QUERY_COMMANDS.isdisjoint(sys.argv):
            known = self.distribution.ext_modules
            known += [extension for extension in compiled_by_mypyc() if extension not in known]
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        super().run()
        for library in Path("ciel").glob("compiled_*.so"):  # built, or found to be up to date
            library.touch()

    def build_extension(self, ext):
        apart = copy.copy(self)
        apart.build_temp = os.path.join(self.build_temp, ext.name)
        super(BuildApart, apart).build_extension(ext)


room_packages = [
    f"ciel.{room}{'.' + sub if sub else ''}"
    for room in TOP_LEVEL_PACKAGES
    for sub in ["", *find_packages(room)]
]
setup(
    packages=[*(p for p in find_packages(include=["ciel", "ciel.*"])), *room_packages],
    package_dir={"ciel": "ciel"} | {f"ciel.{room}": room for room in TOP_LEVEL_PACKAGES},
    package_data={
        "ciel": ["py.typed"],
        "ciel.launch": ["launcher.c", "isolate.c", "execute.h"],
        "ciel.memory": ["*.c", "*.h", "nbdkit/*.c"],  # `ciel memory export` compiles a plug-in
        "ciel.executors.sdk": [
            "c/*",
            "java/pom.xml",
            "java/src/**/*.java",
            "lib/pkgconfig/*",
            "ocaml/*.ml",
        ],
        "ciel.executors.sdk.heap": ["*.c", "*.h", "pass.cpp"],  # `ciel-cc` compiles them
        "ciel.skywriting": ["grammar.txt", "library/*.sw"],
    },
    include_package_data=False,  # git's list of files would bring tests and sources in C
    setup_requires=[] if COMPILED_OPTION == "0" else COMPILER,
    cffi_modules=[f"scc/build_ffi.py:{name}" for name in PARTS["MODULES"] if HAS_PYTHON_HEADERS],
    data_files=[("bin", [str(TOOLS_HOME / program) for program in PROGRAMS])],
    cmdclass={"build_py": BuildWithPrograms, "build_ext": BuildApart},
)
