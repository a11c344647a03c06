"""Finds and checks the address that a daemon advertises: clients and other hosts connect to it."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from ciel.access.addresses import is_loopback, netloc, parse_url
from ciel.access.keys import Key
from ciel.access.settings import MasterLocation, find_master
from ciel.access.tickets import make_ticket
from ciel.cli.daemons.errors import DaemonError
from ciel.cli.daemons.process import log
from ciel.net.errors import AddressError
from ciel.net.transfers import Transfers
from ciel.net.transports import Address, parse_address

EVERYWHERE = frozenset(("", "0.0.0.0", "::"))  # addresses that mean every interface
HEALTH = "/healthz"
AUTO = "auto"
_UNKNOWN = "HOST"  # in messages


def host_and_port(text: str) -> str:
    """Check `HOST:PORT` to listen at; port 0 and an empty host are allowed (an argparse type)."""
    with contextlib.suppress(AddressError):
        if not parse_address(text).name:
            return text
    raise argparse.ArgumentTypeError(f"{text[:80]!a} is not an address: expected HOST:PORT")


def host_and_port_or_auto(text: str) -> str:
    """Check `HOST:PORT`, or `auto`, to listen at (an argparse type); see `listen_towards`."""
    return text if text == AUTO else host_and_port(text)


def listen_towards(listen: str, master_url: str) -> str:
    """Return where to listen; `auto` means the address from which this host reaches the master."""
    if listen != AUTO:
        return listen
    _, host, port = parse_url(master_url)
    own = _address_towards(host, port)
    if own == _UNKNOWN:
        raise DaemonError(f"this host has no route to the master at {master_url}", status=3)
    return f"{own}:0"


def reachable_address(text: str) -> str:
    """Check a `HOST:PORT` to connect to (an argparse type); port 0 means the port that is bound."""
    if parse_address(host_and_port(text)).host in EVERYWHERE:
        raise argparse.ArgumentTypeError(
            f"{text!a} is not an address to connect to: expected HOST:PORT"
        )
    return text


def advertised(options: argparse.Namespace) -> Address:
    """Return the address to advertise, with port 0 if the port is not known yet.

    Raises DaemonError if the options do not determine an address.
    """
    address = parse_address(options.advertise or options.listen)
    if address.host in EVERYWHERE:
        raise DaemonError(
            f"--listen {options.listen} means every address of this computer; "
            f"name the one that other hosts connect to: --advertise HOST:{address.port}",
            status=2,
        )
    return address


def with_port(address: Address, found: Address) -> str:
    """Return an advertised address as text, with the bound port in place of port 0."""
    return netloc(address.host, address.port or found.port)


def reachable(control: str, url: str) -> str:
    """Return an address by which this process reaches the master's control port.

    It is the control address if that socket is in this network namespace, else the host and port of
    the URL.
    """
    name = control.removeprefix("unix:")
    if name == control:
        return control
    sockets = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").split()
    return control if name in sockets else url.removeprefix("http://")


def find_reachable_master(options: argparse.Namespace, daemon: str) -> tuple[MasterLocation, str]:
    """Return the master of a daemon's options or environment, and its control address from here.

    `daemon`: as for `require_reachable`. Raises DaemonError, SettingsError or AccessError.
    """
    found = find_master(options.master, options.access, os.environ)
    if found is None:
        raise DaemonError(
            "no master: name one with --master, CIEL_MASTER or --access, or start one: ciel up",
            status=3,
        )
    options.listen = listen_towards(options.listen, found.url)
    require_reachable(advertised(options).host, found.url, daemon)
    log.info("master {url}, from {origin}", url=found.url, origin=found.origin)
    return found, reachable(found.control, found.url)


def require_reachable(own_host: str, master_url: str, daemon: str) -> None:
    """Raise DaemonError if a daemon listens on loopback, and its master does not.

    `daemon`: its name in the message, `worker` or `memory server`.
    """
    _, host, port = parse_url(master_url)
    if is_loopback(own_host) and not is_loopback(host):
        raise DaemonError(
            f"other hosts cannot reach this {daemon}: it listens on {own_host}, which only this "
            f"host reaches, but other hosts use its master at {master_url}; use: --listen "
            f"{_address_towards(host, port)}:0",
            status=2,
        )


def _address_towards(host: str, port: int) -> str:
    """Return the address of this host on the route to another; sends nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, port))
        except OSError:
            return _UNKNOWN
        found = str(sock.getsockname()[0])
        return f"[{found}]" if ":" in found else found


def try_address(
    own: str, worker: str, transfers: Transfers, key: Key, found: Callable[[], object],
    failed: Callable[[str], object],
) -> Callable[[], object]:  # fmt: skip
    """Check that this worker answers at its advertised address.

    Calls `found` if it does, else `failed` with the reason. Returns a function that cancels the
    check.
    """
    answer = BytesIO()
    ticket = make_ticket(key, "GET", own, HEALTH, time.time())
    asked = transfers.fetch(f"http://{own}{HEALTH}", answer, headers={"Authorization": ticket})

    def answered(result: object) -> None:
        if worker.encode() in answer.getvalue():
            found()
        else:
            failed(f"--advertise {own}: another program answers at this address")

    def not_found(failure: Failure) -> None:
        if not isinstance(failure.value, CancelledError):
            failed(f"--advertise {own}: cannot reach this worker at this address: {failure.value}")

    asked.addCallbacks(answered, not_found)
    return asked.cancel
