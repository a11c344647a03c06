"""Finds the GPUs of this host, by reading files only, and claims them for one worker.

A program finds the same devices at the same indices: NVIDIA's are counted in the order of the PCI
bus, AMD's in the order of the kernel's topology. Devices that this user cannot open do not count,
nor does a GPU that is divided into instances (MIG), whose programs name instances instead.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_UNITS = re.compile(r"^simd_count (\d+)", re.MULTILINE)
_RENDERER = re.compile(r"^drm_render_minor (\d+)", re.MULTILINE)
_NONE = ("", "-1", "NoDevFiles", "none", "void")


def find_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """Return the indices of the GPUs, as `CUDA_VISIBLE_DEVICES` names them.

    If the worker's own variables restrict the devices, these are the ones that they name.
    """
    found = _nvidia(root) or _amd(root)
    if not found:
        return []
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in environ:
            return _named(environ[name])
    if "ROCR_VISIBLE_DEVICES" in environ:  # programs count only the devices that it leaves
        return [str(number) for number, _ in enumerate(_named(environ["ROCR_VISIBLE_DEVICES"]))]
    return found


def _named(text: str) -> list[str]:
    """Return the devices that a variable names: as for CUDA, those before the first invalid one."""
    found: list[str] = []
    for item in text.split(","):
        if item.strip() in _NONE or item.strip() in found:
            break
        found.append(item.strip())
    return found


def _nvidia(root: Path) -> list[str]:
    present = []
    for about in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        minor = _MINOR.search(_text(about))
        if minor is None or not _is_open(root / f"dev/nvidia{minor[1]}"):
            continue
        is_divided = any(root.glob(f"proc/driver/nvidia/capabilities/gpu{minor[1]}/mig/gi*"))
        present.append(not is_divided)
    return [str(number) for number, is_whole in enumerate(present) if is_whole]


def _amd(root: Path) -> list[str]:
    count = 0
    nodes = root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")
    for about in sorted(nodes, key=lambda path: path.parent.name.zfill(9)):
        text = _text(about)
        units, renderer = _UNITS.search(text), _RENDERER.search(text)
        is_gpu = units is not None and int(units[1]) > 0 and renderer is not None
        if is_gpu and renderer and _is_open(root / f"dev/dri/renderD{renderer[1]}"):
            count += 1
    return [str(number) for number in range(count)] if _is_open(root / "dev/kfd") else []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _is_open(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


class Claims:
    """The GPUs that this worker has detected and no other worker of the host has claimed.

    A claim is an abstract socket, which the kernel removes with this process.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def claim(self, indices: Iterable[str]) -> list[str]:
        """Claim GPUs; return those that no other worker has."""
        claimed = []
        for index in indices:
            holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                holder.bind(f"\0ciel-gpu-{index}")
            except OSError:
                holder.close()
                continue
            self._sockets.append(holder)
            claimed.append(index)
        return claimed

    def close(self) -> None:
        """Give the claims up."""
        while self._sockets:
            self._sockets.pop().close()
