"""`ciel flight`: serves the tables of a cluster to clients of Arrow Flight."""

from __future__ import annotations

import signal
import socket
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ciel.access.addresses import is_loopback, netloc
from ciel.cli.connection import connect
from ciel.cli.outcome import Status, UsageError
from ciel.cli.output.printing import print_json, print_text
from ciel.cli.parsing.options import add_cluster_options, make_parser
from ciel.cli.parsing.parser import whole_number
from ciel.client.client import Client
from ciel.client.data.uploads import REPLICAS
from ciel.core.events import COPIES_MAX

if TYPE_CHECKING:
    from ciel.arrow.flight import TableServer

DEFAULT_LISTEN: Final = "127.0.0.1:8815"
_EPILOG: Final = """\
Clients list, read and put tables by name. Each call needs a key as its bearer token, or as the
password of a login: `ciel key read` prints one to read, `ciel key submit` one to put as well.
"""


def main(prog: str, words: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM."""
    parser = make_parser("ciel flight", "Serve the tables of a cluster by Arrow Flight.", _EPILOG)
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=DEFAULT_LISTEN,
        help=f"where to listen; port 0: any (default {DEFAULT_LISTEN})",
    )  # fmt: skip
    parser.add_argument("--tls-cert", metavar="FILE", type=Path, help="certificate, for TLS")
    parser.add_argument("--tls-key", metavar="FILE", type=Path, help="the certificate's key")
    parser.add_argument(
        "--copies", type=whole_number(1, COPIES_MAX), default=REPLICAS, metavar="N",
        help=f"how many workers hold each table that is put (default {REPLICAS})",
    )  # fmt: skip
    add_cluster_options(parser)
    args = parser.parse_args(words)
    host, port = _address(args.listen)
    certificates = _certificates(args)
    if not certificates and not is_loopback(host):
        raise UsageError(
            f"--listen {args.listen}: keys would cross the network in clear; add --tls-cert and "
            "--tls-key"
        )
    _require_free(args.listen, host, port)
    ends = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before there are threads, which inherit it
    with connect(args, "ciel flight") as client:
        scheme = "grpc+tls" if certificates else "grpc"
        server = _serve(client, f"{scheme}://{netloc(host, port)}", certificates, args.copies)
        url = f"{scheme}://{netloc(host, server.port)}"
        if args.json:
            print_json({"url": url})
        else:
            print_text(f"tables of {client.location.url} at {url}")
        signal.sigwait(ends)
        server.shutdown()
    return Status.DONE


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text}: it must be HOST:PORT")
    return host.strip("[]"), int(port)


def _require_free(text: str, host: str, port: int) -> None:
    """Raise UsageError if another process listens there: gRPC would share the port with it."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
                trial.listen()
    except OSError as error:
        raise UsageError(f"--listen {text}: {error.strerror}") from None


def _certificates(args: Namespace) -> list[tuple[bytes, bytes]]:
    if args.tls_cert is None and args.tls_key is None:
        return []
    if args.tls_cert is None or args.tls_key is None:
        raise UsageError("--tls-cert and --tls-key belong together")
    try:
        return [(args.tls_cert.read_bytes(), args.tls_key.read_bytes())]
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None


def _serve(
    client: Client, location: str, certificates: list[tuple[bytes, bytes]], copies: int
) -> TableServer:
    try:
        from pyarrow import ArrowException

        from ciel.arrow.flight import TableServer
    except ImportError:
        raise UsageError(
            "pyarrow with Flight is not installed; pip install 'ciel[arrays]' installs it"
        ) from None
    try:
        return TableServer(client, location, certificates=certificates or None, copies=copies)
    except (ArrowException, OSError) as error:
        raise UsageError(f"cannot listen at {location}: {error}") from None
