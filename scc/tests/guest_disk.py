"""Makes a disk for virtual machines that run ciel: Python, ciel, its dependencies, and programs.

The machines mount it read-only, and change their root directory to it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MODULES: Final = ("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev",
                  "virtio_pci", "virtio_blk")  # fmt: skip
"""The modules of the kernel that the disk needs, in the order of their use."""
TOOLS: Final = ("sh", "find", "grep", "head", "ip", "kill", "sha256sum", "sleep", "sort", "touch",
                "tr", "test", "cat", "mkdir", "date")  # fmt: skip
MOUNTS: Final = ("dev", "proc", "sys", "run")
SPACE_MIB: Final = 32
_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "test", "tests", "site-packages", "*.a",
                                          "idlelib", "ensurepip", "turtledemo", "*.h")  # fmt: skip
_COMPILE: Final = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-j", "0")


def make_disk(place: Path, programs: Iterable[Path]) -> Path:
    """Return an image of the file system ext4. All paths in it are as on this host."""
    tree, image = place / "tree", place / "disk"
    for name in (*MOUNTS, "bin", "usr/bin"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    shutil.copy(busybox, tree / "bin/busybox")
    for tool in TOOLS:
        (tree / "bin" / tool).symlink_to("busybox")
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    _copy(tree, stdlib)
    binaries = [Path(sys.executable).resolve(), *programs]
    packages = Path(sysconfig.get_path("purelib"))
    own = [*packages.glob("ciel-*.dist-info"), *packages.glob("__editable__*ciel*")]
    for each in ("ciel", "scc", "shm", "executors", "skywriting", "examples"):
        _copy(tree, ROOT / each)
    for path in [*binaries, *own, *_files_of("ciel")]:
        _copy(tree, path)
    _copy(tree, Path(sys.prefix, "pyvenv.cfg"))
    for script in Path(sys.prefix, "bin").iterdir():
        if script.name.startswith(("ciel", "python", "sw-job", "sw-")):
            _copy(tree, script)
    (tree / "usr/bin/python3").symlink_to(sys.executable)
    objects = [path for path in tree.rglob("*.so*") if path.is_file()]
    for library in _libraries([*binaries, *objects]):
        _copy(tree, library)
    # A machine whose processor is emulated would take a minute for each start of Python.
    subprocess.run([sys.executable, *_COMPILE, "-s", str(tree), "-p", "/", str(tree)], check=False)
    size_mib = sum(path.lstat().st_size for path in tree.rglob("*")) // 2**20 * 5 // 4 + SPACE_MIB
    command = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(tree), str(image)]
    subprocess.run([*command, f"{size_mib}M"], check=True)
    shutil.rmtree(tree)
    return image


def _copy(tree: Path, path: Path) -> None:
    target = tree / path.relative_to("/")
    if target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, ignore=_LEFT_OUT, symlinks=True)
    elif path.is_symlink():
        target.symlink_to(os.readlink(path))
        _copy(tree, path.parent / os.readlink(path))
    else:
        shutil.copy(path, target)


def _files_of(name: str, seen: set[str] | None = None) -> Iterator[Path]:
    """Yield the files of a distribution and of all that it requires."""
    seen = set() if seen is None else seen
    if name in seen:
        return
    seen.add(name)
    try:
        found = distribution(name)
    except PackageNotFoundError:  # for other versions of Python only
        return
    for file in found.files or ():
        path = Path(os.path.normpath(str(found.locate_file(file))))
        if path.is_file() and "__pycache__" not in path.parts:
            yield path
    for requirement in found.requires or ():
        if "extra ==" not in requirement:
            yield from _files_of(re.split(r"[ ;<>=!~\[(]", requirement)[0].lower(), seen)


def _libraries(binaries: Sequence[Path]) -> set[Path]:
    """Return the shared libraries that binaries need, and the loader."""
    command = ["ldd", *map(str, binaries)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", printed, re.MULTILINE)}
