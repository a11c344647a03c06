"""What a daemon counts, for INFO in the words of Redis, and for Prometheus."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import ciel
from ciel.net.exposition import Family, counter, gauge
from ciel.state.server.buffered import BufferedRows
from ciel.state.server.limits import KvLimits
from ciel.state.server.resp import Failure

REDIS_VERSION: Final = "7.0.0"
"""What INFO and HELLO report, since clients derive from it which commands there are."""
_ALL: Final = frozenset(("ALL", "EVERYTHING"))


class Used:
    """What clients have done with one command. `rejected`: calls that were not begun."""

    __slots__ = ("calls", "failed", "rejected", "seconds")

    def __init__(self) -> None:
        self.calls = self.failed = self.rejected = 0
        self.seconds = 0.0


class OpenNow(NamedTuple):
    """What clients have open at this moment."""

    connections: int
    watches: int


class KvMetrics:
    """Counters, which the parts of the daemon increase, and their views."""

    def __init__(
        self, rows: BufferedRows, limits: KvLimits, names: Iterable[bytes],
        open_now: Callable[[], OpenNow],
    ) -> None:  # fmt: skip
        self.commands = {name: Used() for name in sorted(names)}
        self.unknown = Used()
        self.failures: Counter[str] = Counter()
        """Errors by their code."""
        self.connections = self.refused_connections = 0
        self.received_bytes = self.sent_bytes = 0
        self.ended_rows = 0
        self.port = 0
        self._rows = rows
        self._limits = limits
        self._open_now = open_now
        self._started_s = time.monotonic()

    def failed(self, used: Used, failure: Failure) -> Failure:
        """Count a command that could not be carried out; return its failure."""
        used.failed += 1
        self.failures[failure.code] += 1
        return failure

    def rejected(self, used: Used, failure: Failure) -> Failure:
        """Count a command that was not begun; return its failure."""
        used.rejected += 1
        self.failures[failure.code] += 1
        return failure

    @property
    def refused_passwords(self) -> int:
        return self.failures["WRONGPASS"]

    @property
    def calls(self) -> int:
        """How many commands were carried out."""
        return self.unknown.calls + sum(used.calls for used in self.commands.values())

    # --- INFO -------------------------------------------------------------------------------------

    def info(self, wanted: Iterable[str]) -> str:
        """Return the text of INFO, with some sections; without names the usual ones."""
        names = {name.upper() for name in wanted} or {"DEFAULT"}
        lines: list[str] = []
        for title, section in self._sections().items():
            is_usual = "DEFAULT" in names and title != "Commandstats"
            if names & _ALL or title.upper() in names or is_usual:
                lines += ["", f"# {title}", *[f"{name}:{value}" for name, value in section.items()]]
        return "\r\n".join([*lines[1:], ""])

    def _sections(self) -> dict[str, dict[str, Any]]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        size = self._rows.layers.size
        keys = f"keys={size.rows},expires={size.ending},avg_ttl=0"
        return {
            "Server": self._server(),
            "Clients": self._clients(),
            "Memory": {"used_memory": _resident_bytes(), "used_memory_rss": _resident_bytes()},
            "Persistence": self._persistence(),
            "Stats": self._stats(),
            "Replication": {"role": "master", "connected_slaves": 0},
            "CPU": {"used_cpu_sys": usage.ru_stime, "used_cpu_user": usage.ru_utime},
            "Commandstats": {
                f"cmdstat_{name.decode().lower()}": _command_text(used)
                for name, used in self.commands.items()
                if used.calls
            },
            "Errorstats": {
                f"errorstat_{code}": f"count={count}"
                for code, count in sorted(self.failures.items())
            },
            "Cluster": {"cluster_enabled": 0},
            "Keyspace": {"db0": keys} if size.rows else {},
        }

    def _server(self) -> dict[str, Any]:
        up_s = int(time.monotonic() - self._started_s)
        return {
            "redis_version": REDIS_VERSION, "ciel_version": ciel.__version__,
            "redis_mode": "standalone", "process_id": os.getpid(), "tcp_port": self.port,
            "uptime_in_seconds": up_s, "uptime_in_days": up_s // 86_400,
        }  # fmt: skip

    def _clients(self) -> dict[str, Any]:
        now = self._open_now()
        return {
            "connected_clients": now.connections, "maxclients": self._limits.clients,
            "ciel_watches": now.watches, "ciel_snapshots": self._rows.snapshots,
        }  # fmt: skip

    def _persistence(self) -> dict[str, Any]:
        rows = self._rows
        return {
            "loading": 0, "rdb_changes_since_last_save": rows.number - rows.committed,
            "rdb_bgsave_in_progress": int(rows.is_committing),
            "rdb_last_save_time": rows.committed_us // 1_000_000,
            "rdb_last_bgsave_status": "err" if rows.is_stuck else "ok",
            "rdb_last_bgsave_time_sec": round(rows.last_commit_s), "aof_enabled": 1,
            "aof_current_size": rows.log_bytes(), "ciel_records": rows.number,
            "ciel_commits": rows.commits, "ciel_commit_seconds": round(rows.commits_s, 6),
            "ciel_durable_time": rows.durable_us // 1_000_000, "ciel_bytes": rows.layers.size.bytes,
            "ciel_capacity_bytes": rows.capacity_bytes, "ciel_size_bytes": rows.file_bytes(),
        }  # fmt: skip

    def _stats(self) -> dict[str, Any]:
        return {
            "total_connections_received": self.connections,
            "total_commands_processed": self.calls,
            "total_net_input_bytes": self.received_bytes,
            "total_net_output_bytes": self.sent_bytes,
            "rejected_connections": self.refused_connections,
            "expired_keys": self.ended_rows,
            "total_error_replies": sum(self.failures.values()),
            "acl_access_denied_auth": self.refused_passwords,
        }

    # --- Prometheus -------------------------------------------------------------------------------

    def families(self) -> list[Family]:
        """Return the metrics of this daemon."""
        return [*self._of_clients(), *self._of_commands(), *self._of_rows()]

    def _of_clients(self) -> list[Family]:
        now = self._open_now()
        return [
            gauge("ciel_kv_connections", "Connections of clients.", now.connections),
            gauge("ciel_kv_connections_max", "The largest number of them.", self._limits.clients),
            counter("ciel_kv_connections_total", "Connections accepted.", self.connections),
            counter(
                "ciel_kv_connections_refused_total", "Connections refused, since there were most.",
                self.refused_connections,
            ),
            counter(
                "ciel_kv_passwords_refused_total", "Wrong passwords and proofs of clients.",
                self.refused_passwords,
            ),
            gauge("ciel_kv_snapshots", "Snapshots that are open.", self._rows.snapshots),
            gauge("ciel_kv_watches", "Keys and prefixes that clients watch.", now.watches),
            counter("ciel_kv_received_bytes_total", "Bytes from clients.", self.received_bytes),
            counter("ciel_kv_sent_bytes_total", "Bytes to clients.", self.sent_bytes),
        ]  # fmt: skip

    def _of_commands(self) -> list[Family]:
        used = [
            ({"command": name.decode().lower()}, used)
            for name, used in (*self.commands.items(), (b"unknown", self.unknown))
            if used.calls
        ]
        return [
            Family(
                "ciel_kv_commands_total", "counter", "Commands, by name.",
                [(at, of.calls) for at, of in used],
            ),
            Family(
                "ciel_kv_command_errors_total", "counter", "Commands that failed, by name.",
                [(at, of.failed + of.rejected) for at, of in used],
            ),
            Family(
                "ciel_kv_command_seconds_total", "counter", "Time of commands, by name.",
                [(at, of.seconds) for at, of in used],
            ),
            Family(
                "ciel_kv_errors_total", "counter", "Errors, by code.",
                [({"code": code}, count) for code, count in sorted(self.failures.items())],
            ),
        ]  # fmt: skip

    def _of_rows(self) -> list[Family]:
        rows, size = self._rows, self._rows.layers.size
        return [
            gauge("ciel_kv_rows", "Keys.", size.rows),
            gauge("ciel_kv_rows_ending", "Keys with a lifetime.", size.ending),
            gauge("ciel_kv_bytes", "Bytes of keys and values.", size.bytes),
            gauge("ciel_kv_capacity_bytes", "The largest number of them.", rows.capacity_bytes),
            gauge("ciel_kv_full", "Whether the base refuses to grow.", int(rows.is_full)),
            gauge("ciel_kv_file_bytes", "Size of the file of LMDB.", rows.file_bytes()),
            gauge("ciel_kv_log_bytes", "Size of the logs, which LMDB lacks.", rows.log_bytes()),
            counter("ciel_kv_rows_ended_total", "Rows removed that had ended.", self.ended_rows),
            counter("ciel_kv_commits_total", "Commits of LMDB.", rows.commits),
            counter("ciel_kv_commit_seconds_total", "Time of commits of LMDB.", rows.commits_s),
            gauge(
                "ciel_kv_durable_timestamp_seconds", "When writes were made durable last.",
                rows.durable_us / 1e6,
            ),
        ]  # fmt: skip


def _command_text(used: Used) -> str:
    us = used.seconds * 1e6
    return (
        f"calls={used.calls},usec={us:.0f},usec_per_call={us / used.calls:.2f},"
        f"rejected_calls={used.rejected},failed_calls={used.failed}"
    )


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
