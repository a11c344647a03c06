"""Two virtual machines that share only an image run option pricing and grep together.

The first machine has a master and a worker, the second machine a worker. Both have a bridge, and no
network device. Requirements CIB-14, CIB-30.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ciel.scc.tests import guest_disk
from ciel.testing.virtual_machines import Guest, GuestError, Kernel, archive

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "examples"
SDK: Final = ROOT / "executors/sdk/c"
MEMORY_MIB: Final = 512
IMAGE_MIB: Final = 128  # a power of two, as for all memory of PCI devices
START_S: Final = 240
COMMAND_S: Final = 300.0
JOB_S: Final = 600.0
DISK: Final = "/disk"
SETUP: Final = f"""
mkdir {DISK}
mount -t ext4 -o ro /dev/vda {DISK}
for name in dev proc sys; do mount --bind /$name {DISK}/$name; done
mount -t tmpfs none {DISK}/run && mkdir -m 700 {DISK}/run/home
mkdir -p {DISK}/dev/shm && mount -t tmpfs none {DISK}/dev/shm
ip link set lo up
"""
HOME: Final = "/run/home"
ENVIRON: Final = f"HOME={HOME} TMPDIR={HOME} XDG_STATE_HOME={HOME} CIEL_ACCESS={HOME}/access.json"


class Machine(Guest):
    """A machine in which commands of ciel run."""

    def __init__(self, place: Path, memory: Path) -> None:
        device = f"memory-backend-file,id=m,size={IMAGE_MIB}M,share=on,mem-path={memory}"
        disk = f"file={place / 'disk'},if=virtio,format=raw,readonly=on"
        options = ("-object", device, "-device", "ivshmem-plain,memdev=m", "-drive", disk)
        super().__init__(place, MEMORY_MIB, options)
        self.image = self.run("echo $SHMFS_NAME")
        path = f"PATH={Path(sys.prefix, 'bin')}:/bin:/usr/bin"
        self._prefix = f"chroot {DISK} /bin/busybox env -i {path} {ENVIRON}"

    def ciel(self, command: str, timeout_s: float = JOB_S) -> str:
        """Run a command in the disk's root directory; return its output."""
        return self.run(self.line_of(command), timeout_s)

    def line_of(self, command: str) -> str:
        """Return the line that runs a command in the disk's root directory."""
        said = f"{DISK}{HOME}/said"
        return f"{self._prefix} {command} 2>{said} || (cat {said}; false)"

    def serve(self, name: str, command: str, expected: str) -> None:
        """Start a daemon, and wait until its log has a text."""
        log = f"{DISK}/run/{name}.log"
        self.run(f"{{ {self._prefix} {command} >{log} 2>&1 & }}")
        self.wait(f"grep -q '{expected}' {log}", log)

    def wait(self, condition: str, log: str) -> None:
        """Wait until a command succeeds. Raises GuestError with the log of a daemon."""
        many = f"until {condition} || [ $s = {START_S} ]; do sleep 1; s=$((s + 1)); done"
        self.run(f"s=0; {many}", COMMAND_S)
        if self.run(f"{condition} || echo no") == "no":
            raise GuestError(f"never true: {condition}: {self.run(f'cat {log}')}")


def prepare(place: Path, kernel: Kernel, setup: str) -> None:
    """Make the files that `Machine` needs."""
    program = place / "binomial"
    sources = (EXAMPLES / "binomial" / "binomial.c", SDK / "ciel.c")
    command: list[str | Path] = [
        "cc",
        "-O2",
        f"-I{SDK}",
        "-o",
        program,
        *sources,
        "-ljansson",
        "-lm",
    ]
    subprocess.run(command, check=True)
    guest_disk.make_disk(place, [program])
    modules = {
        f"modules/{number}-{name}.ko": kernel.module(name)
        for number, name in enumerate(guest_disk.MODULES)
    }
    files = {"setup": f"{setup}{SETUP}".encode(), **modules}
    (place / "initrd").write_bytes(archive(files))


def work_together(place: Path, memory: Path) -> None:
    """Run both jobs on two machines. Raises GuestError."""
    with Machine(place, memory) as one, Machine(place, memory) as other:
        store = f"scc:path={one.image}"
        made = f"{store},capacity=48MiB,cores=2"
        worker = f"ciel-worker --access {HOME}/access.json --slots 1 --spool {HOME}/spool"
        print("  the machines run", flush=True)
        one.serve(
            "master", f"ciel-master --listen 127.0.0.1:8100 --access {HOME}/access.json", "8100"
        )
        one.wait(f"[ -s {DISK}{HOME}/access.json ]", f"{DISK}/run/master.log")
        access = " ".join(one.run(f"cat {DISK}{HOME}/access.json").split())
        other.run(f"(umask 077; echo '{access}' > {DISK}{HOME}/access.json)")
        one.serve("worker", f"{worker} --listen 127.0.0.1:8101 --store {made}", "joined the")
        bridge = f"ciel bridge 0 --store {store} --offer 8100 --offer 8101"
        one.serve("bridge", bridge, "is core 2")
        bridge = f"ciel bridge 1 --store {store} --offer 8102"
        other.serve("bridge", bridge, "port 8100 leads to core 2")
        other.serve("worker", f"{worker} --listen 127.0.0.1:8102 --store {store}", "joined the")
        print("  both workers have joined the master", flush=True)
        price(place, (one, other))
        search(other)
        load(one, other)


def price(place: Path, clients: Sequence[Machine]) -> None:
    """Price an option by the pipeline of the example, from each machine at the same time."""
    words = f"-p binomial {place / 'binomial'} -E STEPS=400 -E CHUNK=40"
    command = f"ciel sw {words} {EXAMPLES / 'binomial/binomial.sw'}"
    for client in clients:
        client.begin(client.line_of(command))
    for client in clients:
        value = client.finish(command, JOB_S)
        print(f"  the option is worth {value}", flush=True)
        if not value.startswith("10.3"):
            raise GuestError(f"the option is worth {value}, not 10.3…")
    expect_both(clients[0], len(clients))


def search(client: Machine) -> None:
    """Search Python's library for a word."""
    value = client.ciel(f"ciel sw -E WORD=lambda {EXAMPLES / 'grep/grep.sw'}")
    found = json.loads(value)
    listed = client.run(f"chroot {DISK} /bin/find {sysconfig.get_path('stdlib')} -name '*.py'")
    files = len(listed.splitlines())
    print(f"  {found['lines']} lines in {found['files']} files have the word", flush=True)
    if found["files"] != files or found["lines"] < files // 10:
        raise GuestError(f"there are {files} files: {value}")
    expect_both(client)


def load(one: Machine, other: Machine) -> None:
    """Let a program of the second machine load an object that a program of the first machine has
    made. The daemons of the workers ask each other by messages in the image.
    """
    begin = "from pathlib import Path; from ciel.shm.client import ShmdClient"
    client = f"client = ShmdClient('{HOME}/spool/store')"
    make = "path = client.write('a'); Path(path).write_text('made'); client.commit(path, 'a')"
    one.ciel(f'python3 -c "{begin}; {client}; {make}"')
    read = "print(Path(client.load('a')).read_text())"
    found = other.ciel(f'python3 -c "{begin}; {client}; {read}"')
    if found != "made":
        raise GuestError(f"the other machine has loaded {found!r}")
    print("  a program has loaded an object of the other machine", flush=True)


def expect_both(client: Machine, count: int = 1) -> None:
    """Check that both workers have run tasks of the last jobs."""
    jobs = [job["id"] for job in json.loads(client.ciel("ciel job list --json"))[-count:]]
    listed = [client.ciel(f"ciel task list --all --json {job}") for job in jobs]
    workers = set(re.findall(r'"worker": ?"([^"]+)"', "".join(listed)))
    if len(workers) != 2:
        raise GuestError(f"one machine has done all of the jobs {jobs}: {workers}")
