"""Clients of Arrow Flight list, read and put the named tables of a cluster."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.flight")

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ciel.access.keys import Key, Role
from ciel.testing.homes import HandCluster
from ciel_tests.documents.schemas import Schemas

TABLE = pa.table({"k": np.arange(100_000), "t": pa.array(["x", None] * 50_000)})


class Served:
    """A cluster, and `ciel flight` that serves its tables. `key`: of the cluster."""

    def __init__(self, cluster: HandCluster) -> None:
        self.home = cluster.home
        self.key = Key.from_text(cluster.key)
        self.process = self.home.start("ciel", "flight", "--listen", "127.0.0.1:0", "--json")
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())
        Schemas().check("flight", found)
        self.url = str(found["url"])

    def client(self, **options: object) -> flight.FlightClient:
        return flight.FlightClient(self.url, **options)

    def options(self, role: Role | None = Role.SUBMIT) -> flight.FlightCallOptions:
        key = self.key if role is None else self.key.derive(role)
        assert key is not None
        return with_token(key.text())


def with_token(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


@pytest.fixture(scope="module")
def served(lasting_cluster: HandCluster) -> Iterator[Served]:
    served = Served(lasting_cluster)
    yield served
    removed = served.home.run("ciel", "object", "rm", "all")
    assert removed.returncode == 0, removed.stderr
    served.process.send_signal(signal.SIGTERM)
    served.process.communicate(timeout=20)
    assert served.process.returncode == 0


def put(served: Served, name: str, table: pa.Table) -> None:
    descriptor = flight.FlightDescriptor.for_path(name)
    with served.client() as client:
        writer, _ = client.do_put(descriptor, table.schema, served.options())
        with writer:
            writer.write_table(table, max_chunksize=30_000)


def names(served: Served, criteria: bytes = b"") -> list[str]:
    with served.client() as client:
        found = client.list_flights(criteria, served.options(Role.READ))
        return sorted(info.descriptor.path[0].decode() for info in found)


def get(served: Served, name: str) -> pa.Table:
    with served.client() as client:
        options = served.options(Role.READ)
        info = client.get_flight_info(flight.FlightDescriptor.for_path(name), options)
        assert info.schema == TABLE.schema
        assert (info.total_records, len(info.endpoints)) == (TABLE.num_rows, 1)
        return client.do_get(info.endpoints[0].ticket, options).read_all()


def test_a_table_is_put_listed_and_read(served: Served) -> None:
    put(served, "sales", TABLE)
    put(served, "sales of today", TABLE.slice(5, 10))
    assert names(served) == ["sales", "sales of today"]
    assert names(served, b"sales of") == ["sales of today"]
    found = get(served, "sales")
    found.validate(full=True)
    assert found.equals(TABLE)
    with served.client() as client:
        path = flight.FlightDescriptor.for_path("sales")
        assert client.get_schema(path, served.options(Role.READ)).schema == TABLE.schema


def test_a_table_replaces_the_one_of_its_name_and_is_dropped(served: Served) -> None:
    put(served, "again", TABLE.slice(0, 1))
    put(served, "again", TABLE)
    assert names(served, b"again") == ["again"]
    assert get(served, "again").equals(TABLE)
    with served.client() as client:
        assert [action.type for action in client.list_actions(served.options())] == ["drop"]
        assert list(client.do_action(("drop", b"again"), served.options())) == []
        assert names(served, b"again") == []
        with pytest.raises(pa.ArrowKeyError, match="there is no table 'again'"):
            list(client.do_action(("drop", b"again"), served.options()))
        with pytest.raises(pa.ArrowKeyError, match="there is no action 'else'"):
            list(client.do_action(("else", b""), served.options()))


def test_what_is_no_table_is_refused(served: Served) -> None:
    served.home.path.joinpath("text").write_text("text" * 1000)
    assert served.home.run("ciel", "object", "put", "text").returncode == 0
    assert "text" not in names(served)
    with served.client() as client:
        for name, error, text in (
            ("text", pa.ArrowInvalid, "text is not a table of Arrow"),
            ("nothing", pa.ArrowKeyError, "nothing"),
        ):
            path = flight.FlightDescriptor.for_path(name)
            with pytest.raises(error, match=text):
                client.get_flight_info(path, served.options(Role.READ))
            with pytest.raises(error, match=text):
                client.do_get(flight.Ticket(name), served.options(Role.READ)).read_all()
        with pytest.raises(pa.ArrowInvalid, match="the descriptor names no table"):
            client.get_flight_info(flight.FlightDescriptor.for_path(), served.options())
        with pytest.raises(pa.ArrowInvalid, match="a name has at most 200 characters"):
            put(served, "x" * 201, TABLE)


@pytest.mark.requirement("POOL-7")
def test_each_call_needs_a_key(served: Served) -> None:
    with served.client() as client:
        for token in ("", "x", Key.new().text(), f"submit-{'0' * 64}"):
            with pytest.raises(flight.FlightUnauthenticatedError, match="needs a key"):
                list(client.list_flights(options=with_token(token)))
        with pytest.raises(flight.FlightUnauthenticatedError, match="needs a key"):
            list(client.list_flights())
        descriptor = flight.FlightDescriptor.for_path("refused")
        writer, _ = client.do_put(descriptor, TABLE.schema, served.options(Role.READ))
        with pytest.raises(flight.FlightUnauthorizedError, match="needs a key of the role submit"):
            writer.close()
    assert "refused" not in names(served)


def test_the_key_may_be_the_password_of_a_login(served: Served) -> None:
    with served.client() as client:
        header = client.authenticate_basic_token("anybody", served.key.text())
        found = list(client.list_flights(options=flight.FlightCallOptions(headers=[header])))
        assert found
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.authenticate_basic_token("anybody", "wrong")


def certificate(directory: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    paths = directory / "cert.pem", directory / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-out", paths[0], "-keyout", paths[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return paths


def test_a_server_with_a_certificate_may_listen_on_the_network(served: Served) -> None:
    home = served.home
    cert, key = certificate(home.path)
    words = ("ciel", "flight", "--listen", "0.0.0.0:0", "--json")
    process = home.start(*words, "--tls-cert", str(cert), "--tls-key", str(key))
    assert process.stdout is not None
    url = str(json.loads(process.stdout.readline())["url"])
    url = url.replace("0.0.0.0", "localhost")
    with flight.FlightClient(url, tls_root_certs=cert.read_bytes()) as client:
        list(client.list_flights(options=served.options(Role.READ)))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.parametrize("words, told", [
    (["--listen", "0.0.0.0:0"], "keys would cross the network in clear; add --tls-cert"),
    (["--listen", "8815"], "--listen 8815: it must be HOST:PORT"),
    (["--listen", "localhost:99999"], "--listen localhost:99999: it must be HOST:PORT"),
    (["--tls-cert", "x"], "--tls-cert and --tls-key belong together"),
    (["--tls-cert", "x", "--tls-key", "y"], "x: No such file or directory"),
    (["--copies", "9"], "--copies"),
])  # fmt: skip
def test_wrong_options_are_refused(served: Served, words: list[str], told: str) -> None:
    done = served.home.run("ciel", "flight", *words)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_port_in_use_is_refused(served: Served) -> None:
    address = served.url.removeprefix("grpc://")
    done = served.home.run("ciel", "flight", "--listen", address)
    assert done.returncode == 2
    assert f"--listen {address}: Address already in use" in done.stderr
