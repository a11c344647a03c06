"""The checks of a cluster: access, versions, workers, addresses, clocks and stores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import Any, Final

import ciel
from ciel.access.errors import AccessError, SettingsError
from ciel.access.keys import Key, Role
from ciel.access.settings import MasterLocation, find_master
from ciel.access.tickets import TICKET_WINDOW_S, make_ticket
from ciel.cli.doctor.findings import Finding, fault, note, ok, settings_fault
from ciel.cli.doctor.memory import check_memory
from ciel.cli.launchers.allocations import brings_workers
from ciel.client.client import Client
from ciel.client.errors import AccessRefusedError, ClientError, NotAMasterError, QueryError

ANSWER_S: Final = 5.0
CLOCKS_APART_S: Final = 10.0
"""The largest difference of clocks without a finding: a sixth of the time for which a ticket is
valid."""

FULL: Final = 0.95
SILENT_S: Final = 2.0
"""A worker that has been silent for this time is a finding; it is suspected after 3 s."""

_HEALTH = "/healthz"


def check_cluster(
    master: str | None, access: str | None, environ: Mapping[str, str]
) -> list[Finding]:
    """Check the cluster; return no findings if none is configured or running."""
    try:
        found = find_master(master, access, environ)
    except SettingsError as error:
        return [settings_fault(error)]
    except AccessError as error:
        return [
            fault("master", str(error), "copy the master's access file here: chmod 600, --access")
        ]
    if found is None:
        return []
    try:
        with closing(Client(found, name="ciel doctor")) as client:
            status, workers, stores = (
                client.ask(topic) for topic in ("status", "workers", "stores")
            )
            memory = _memory_of(client)
    except ClientError as error:
        return [fault("master", str(error), _advice_on(error))]
    return [
        ok("master", f"{found.url}, from {found.origin}"),
        *_versions(status["version"], workers),
        *_workers(found.url, workers, environ),
        *_reached(found, workers),
        *_stores(stores),
        *memory,
    ]


def _memory_of(client: Client) -> list[Finding]:
    try:
        return check_memory(client.ask("memory_stats"))
    except QueryError:  # of a master of an earlier version, which `_versions` names
        return []


def _advice_on(error: ClientError) -> str:
    if isinstance(error, AccessRefusedError):
        return (
            "copy the master's access file again; if the versions differ, install the same version"
        )
    if isinstance(error, NotAMasterError):
        return "name another address: --master, CIEL_MASTER or the configuration file"
    return (
        "start the master on its host (ciel-master), or name another one; `ciel up` starts one on "
        "this computer"
    )


def _versions(of_master: str, workers: list[dict[str, Any]]) -> Iterator[Finding]:
    check, own = "versions", ciel.__version__
    others = {"the master": of_master}
    for worker in workers:
        others[f"worker {worker['worker']}"] = worker.get("software", "another version")
    odd = [f"{who} has {version}" for who, version in others.items() if version != own]
    if odd:
        what = f"this command has {own}, {', '.join(odd[:5])}"
        yield fault(check, what, "install the same version everywhere, and start the daemons again")
    else:
        yield ok(check, f"{own} everywhere")


def _workers(
    url: str, workers: list[dict[str, Any]], environ: Mapping[str, str]
) -> Iterator[Finding]:
    check = "workers"
    if not workers and brings_workers(environ, url):
        yield ok(check, "none now; the launcher asks for some when tasks wait")
        return
    if not workers:
        yield fault(
            check, "the cluster has no worker: nothing can run", f"ciel-worker --master {url}"
        )
        return
    slots = sum(worker["slots"] for worker in workers)
    hosts = len({worker["host"] for worker in workers})
    yield ok(
        check, f"{len(workers)} with {slots} slots on {hosts} {'host' if hosts == 1 else 'hosts'}"
    )
    for worker in workers:
        name = f"{worker['worker']} ({worker['netloc']})"
        if worker["silent_s"] > SILENT_S:
            silent = f"{name} has sent nothing for {worker['silent_s']:.1f} s"
            yield note(check, silent, "check on its host that it runs, and read its log")
        for executor, why in worker.get("lacking", {}).items():
            yield note("executors", f"{name} does not offer {executor}: {why}")


def _reached(found: MasterLocation, workers: list[dict[str, Any]]) -> Iterator[Finding]:
    """Check whether this host reaches the master and all workers, and compare their clocks."""
    netlocs = {"the master": found.url.partition("://")[2]}
    netlocs |= {f"worker {worker['worker']}": worker["netloc"] for worker in workers}
    apart: dict[str, float] = {}
    for who, netloc in netlocs.items():
        try:
            apart[who] = _clock_of(netloc, found.key) - time.time()
        except Exception as error:  # an error of the network, of HTTP, or of another server
            yield fault(
                "addresses", f"this host cannot reach {who} at {netloc}: {error}",
                "open its port in the firewall, or use another address: --advertise HOST:PORT",
            )  # fmt: skip
    if apart:
        yield ok("addresses", f"this host reaches {len(apart)} of {len(netlocs)} daemons")
    odd = {who: by_s for who, by_s in apart.items() if abs(by_s) > CLOCKS_APART_S}
    for who, by_s in odd.items():
        way = "ahead of" if by_s > 0 else "behind"
        yield fault(
            "clocks", f"the clock of {who} is {abs(by_s):.0f} s {way} this host's clock; with "
            f"{TICKET_WINDOW_S:.0f} s or more, daemons reject requests",
            "synchronise both clocks: timedatectl set-ntp true, or chrony",
        )  # fmt: skip
    if apart and not odd:
        yield ok(
            "clocks", f"none differs by more than {CLOCKS_APART_S:.0f} s from this host's clock"
        )


def _clock_of(netloc: str, key: Key) -> float:
    """Send a daemon a request, and return the time in its answer; a rejection has the time, too."""
    from http.client import HTTPConnection

    reading = key.derive(Role.READ) or key
    ticket = make_ticket(reading, "GET", netloc, _HEALTH, time.time())
    with closing(HTTPConnection(netloc, timeout=ANSWER_S)) as connection:
        connection.request("GET", _HEALTH, headers={"Authorization": ticket})
        answer = connection.getresponse()
        date = answer.getheader("Date")
        if date is None:
            raise ValueError("another program answers at this address")
        return parsedate_to_datetime(date).timestamp()


def _stores(stores: list[dict[str, Any]]) -> Iterator[Finding]:
    full = []
    for level in stores:
        capacity_bytes = level["capacity_bytes"]
        used_bytes = level["used_bytes"] + level["reserved_bytes"]
        if capacity_bytes and used_bytes > FULL * capacity_bytes:
            full.append(f"{level['name']} of worker {level['worker']}")
    if full:
        yield note(
            "stores", f"full: {', '.join(full[:5])}",
            "remove ended jobs (ciel job rm), or give workers larger stores with --store",
        )  # fmt: skip
    elif stores:
        yield ok("stores", "none is full")
