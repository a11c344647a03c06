"""Runs a program of every executor on each of two hosts, which reads an object from either; prints
which executors gave a wrong result. Arguments: the directory with jars and libraries, and the
directory with programs, on either host.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ciel import Client
from ciel.client.jobs import Job
from ciel.core.refs import Concrete, Reference
from ciel.wire import codec
from ciel.wire.references import from_json

HERE = Path(__file__).parent
LARGE, SMALL = 1_000_000, 5_000
MAKE = 'readlink /proc/self/ns/net | tr -d "\\n"; head -c "$0" /dev/zero; sleep 0.4'
LOOK = 'readlink /proc/self/ns/net; xargs cat <"$INPUT_FILES" | wc -c'
SKYPY = """
import os, sys
from skypy import deref, deref_as_raw_file, spawn
def size(file):
    assert sys.implementation.name == "pypy"
    return len(deref_as_raw_file(file).read())
def main(*files):
    sizes = map(deref, [spawn("size", file) for file in files])  # wherever that is
    return os.readlink("/proc/self/ns/net") + "\\n" + str(sum(sizes))
"""
SKYWRITING = r"""
said = "printf '\"%s %s\"' $(readlink /proc/self/ns/net) $(wc -c)";
return *spawn_exec("stdinout", {"inputs": argv, "command_line": ["sh", "-c", said]}, 1)[0];
"""

with Client() as client, client.job("everywhere", keep=True) as job:
    sent = {path.name: client.upload(path) for path in Path(sys.argv[1]).iterdir()}
    script = client.upload_content(SKYPY.encode() + b"#" * SMALL, "a script")
    skywriting = client.upload_content(SKYWRITING.encode(), "a script")
    where = [sys.executable, str(HERE / "where.py")]

    def simple(executor: str, **args: Any) -> Callable[[Job, list[Reference]], Any]:
        return lambda job, inputs: job.add(executor, {"args": {**args, "inputs": inputs}})[0]

    def direct(executor: str, **args: Any) -> Callable[[Job, list[Reference]], Any]:
        return lambda job, inputs: job.add(executor, {**args, "proc_pargs": inputs})[0]

    def skypy(job: Job, inputs: list[Reference]) -> Any:
        told = {"pyfile_ref": script, "entry_point": "main", "entry_args": inputs}
        made = job.add("skypy", {**told, "export_json": True, "n_extra_outputs": 1}, n_outputs=2)
        return made[0]

    def swi(job: Job, inputs: list[Reference]) -> Any:
        return job.add("swi", {"sw_file_ref": skywriting, "start_args": inputs})[0]

    programs = {
        "stdinout": simple(
            "stdinout", command_line=["sh", "-c", f"{LOOK.partition(';')[0]}; wc -c"]
        ),
        "env": simple("env", command_line=["sh", "-c", f'exec >"$(cat $OUTPUT_FILES)"; {LOOK}']),
        "java": simple("java", **{"class": "apps.Where", "lib": [sent["apps.jar"]]}),
        "cso": simple("cso", entry_point="where", lib=[sent["where.so"]]),
        "proc": direct("proc", command=where),
        "ocaml": direct("ocaml", binary=f"{sys.argv[2]}/where"),
        "haskell": direct("haskell", binary=f"runhugs {sys.argv[2]}/where.hs"),
        "where": direct("where"),
        "skypy": skypy,
        "swi": swi,
    }
    made = [job.run(["sh", "-c", MAKE, LARGE]) for _ in range(2)]
    large = [ref for ref in job.results(made, timeout_s=30) if isinstance(ref, Concrete)]
    hosts = [client.read(ref).partition(b"]")[0].decode() + "]" for ref in large]
    assert len(set(hosts)) == 2, hosts
    wrong: dict[tuple[str, object], object] = {}
    for name, begin in programs.items():
        for number, host in enumerate(hosts):  # a task is placed where its first input is stored
            small = job.run(
                ["sh", "-c", MAKE.partition("sleep")[0], SMALL], inputs=[large[1 - number]]
            )
            inputs: list[Reference] = [large[number], small]
            said = job.read(begin(job, inputs), timeout_s=30).decode()
            words = (json.loads(said) if name in ("skypy", "swi") else said).split()
            if words != [host, str(LARGE + SMALL + 2 * len(host))]:
                wrong[name, number] = words, host
    # the executors that fetch and collect objects: called by a package's first task, on both hosts
    url = Path(__file__).resolve().as_uri()
    grabbed = [job.add("grab", {"args": {"urls": [url], "version": n}})[0] for n in range(8)]
    gathered = job.add("sync", {"args": {"inputs": grabbed}})[0]
    told = job.start_package("sync", {"inputs": [gathered]}, {})
    for _ in ("init", "sync", "sync"):
        (told,) = from_json(codec.decode(job.read(told, timeout_s=30)))[:1]
    found = from_json(codec.decode(job.read(told, timeout_s=30)))
    if client.read(found) != Path(__file__).read_bytes():
        wrong["grab", url] = found
    answers = [codec.decode(job.read(ref, timeout_s=30)) for ref in grabbed]
    if len({place for ref in map(from_json, answers) for place in ref.locations}) != 2:
        wrong["grab", 2] = answers
    print("wrong:", wrong)
