"""Connects a command to the cluster that its options, the environment or `ciel up` name."""

from __future__ import annotations

import argparse
import os

from ciel.access import access_file
from ciel.access.errors import AccessFileError
from ciel.access.paths import current_path
from ciel.access.settings import MasterLocation, find_master
from ciel.cli.outcome import say
from ciel.client.client import Client
from ciel.client.errors import NoMasterError


def connect(args: argparse.Namespace, name: str) -> Client:
    """Connect to the cluster; raises NoMasterError if there is none."""
    return Client(require_master(args), name=name)


def connect_or_start(args: argparse.Namespace, name: str) -> Client:
    """Connect to the cluster, or start one for this command if there is none."""
    found = find_master(args.master, args.access, os.environ)
    if found is None:
        if interruption := _interruption():
            say(f"{interruption}; `ciel up` continues it")
        return Client(name=name, cluster_options={"workers": args.workers or 1})
    if args.workers:
        say(f"--workers has no effect: the cluster at {found.url} has its own workers")
    client = Client(found, name=name)
    try:
        if not client.slot_count():
            _say_that_it_waits(found.url)
    except BaseException:
        client.close()
        raise
    return client


def _say_that_it_waits(url: str) -> None:
    from ciel.cli.launchers.allocations import brings_workers  # few clusters are without workers

    advice = "start one with ciel-worker"
    if brings_workers(os.environ, url):
        advice = "`ciel launcher explain` says when one comes"
    say(f"the cluster at {url} has no worker: the job waits until one joins; {advice}")


def require_master(args: argparse.Namespace) -> MasterLocation:
    """Return the location of the master; raises NoMasterError if there is none."""
    found = find_master(args.master, args.access, os.environ)
    if found is None:
        if interruption := _interruption():
            raise NoMasterError("", f"{interruption}; `ciel up` continues it")
        raise NoMasterError("", "no cluster is configured or running; `ciel up` starts one")
    return found


def interrupted() -> access_file.AccessFile | None:
    """Return the access file of a cluster that ended without `ciel down`, if one did."""
    try:
        found = access_file.read(current_path(os.environ))
    except AccessFileError:
        return None
    return None if found.is_alive() else found


def _interruption() -> str:
    """Return a message about the cluster that was interrupted; "" if none was."""
    gone = interrupted()
    if gone is None:
        return ""
    logs = current_path(os.environ).resolve().parent
    ended = f"process {gone.pid} has ended; logs in {logs}"
    return f"the cluster at {gone.url} was interrupted ({ended})"
