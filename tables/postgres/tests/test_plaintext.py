"""A password that goes to another machine without TLS is warned of once, and nothing of it is shown."""

import logging
import secrets
import socket
import ssl
import threading
from contextlib import suppress

import psycopg
import pytest

from multiclouddb_api import ErrorCategory, MulticloudDbError
from multiclouddb_conformance.sink_harness import page, rows
from multiclouddb_cosmos_emulator.tls import make_certificate, server_context
from multiclouddb_postgres import PostgresCheckpointStore, PostgresTarget, merge_into_postgres
from testing.postgres_server import PostgresServer

ASKS = "local all all trust\nhost all all all scram-sha-256\n"


@pytest.fixture(scope="module")
def host():
    """Return the address of a server that asks for a password; each run has another one."""
    address = ".".join(["127", *(str(secrets.randbelow(250) + 1) for _ in range(3))])
    with PostgresServer(f"listen_addresses={address}") as server:
        (server.folder / "data" / "pg_hba.conf").write_text(ASKS)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("CREATE ROLE worker SUPERUSER LOGIN PASSWORD 'hush'")
        yield address


@pytest.fixture
def somewhere(monkeypatch):
    """Let this machine count as another one."""
    monkeypatch.setattr("multiclouddb_postgres.server.is_loopback", lambda host: False)
    monkeypatch.setattr("multiclouddb_spi.connection._WARNED", {})


def use(dsn):
    """Do what opens a connection: the sink, the store and the target."""
    merge_into_postgres(page([], token="t"), None, dsn, "orders", None, checkpoint_name="w")
    merge_into_postgres(rows(("a", 1, {})), None, dsn, "orders", None)
    assert PostgresCheckpointStore(dsn).load("w").token == "t"
    assert PostgresTarget(dsn, "orders").found().mark is not None
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE orders, multiclouddb_marks, multiclouddb_checkpoints")


def told(caplog):
    return [each for each in caplog.records if each.name == "multiclouddb.postgres"]


def test_another_machine_is_warned_of_once(host, caplog, somewhere):
    for _ in range(2):
        use(f"host={host} user=worker password=hush dbname=postgres")
    [record] = told(caplog)
    assert record.levelno == logging.WARNING
    assert f"{host}:5432" in record.getMessage()
    assert "sslmode=verify-full" in record.getMessage()
    assert "hush" not in record.getMessage()


def test_this_machine_is_no_other(host, caplog):
    use(f"host={host} user=worker password=hush dbname=postgres")
    assert told(caplog) == []


def test_a_connection_without_a_password_tells_nobody_one(dsn, caplog, somewhere):
    use(dsn)
    assert told(caplog) == []


def test_a_connection_of_the_application_is_its_own(host, caplog, somewhere):
    dsn = f"host={host} user=worker password=hush dbname=postgres"
    with psycopg.connect(dsn, autocommit=True) as connection:
        merge_into_postgres(rows(("a", 1, {})), None, connection, "own", None)
    assert told(caplog) == []


def test_tls_is_seen(host, caplog, somewhere, tmp_path):
    """This server has no TLS, so a proxy has it."""
    with Tls(make_certificate(tmp_path), host) as proxy:
        use(
            f"host=127.0.0.1 port={proxy.port} user=worker password=hush dbname=postgres sslmode=require "
            "sslnegotiation=direct channel_binding=disable"
        )
    assert proxy.count
    assert told(caplog) == []


def refused(dsn):
    with pytest.raises(MulticloudDbError) as caught:
        PostgresCheckpointStore(dsn).load("w")
    assert (caught.value.category, caught.value.retryable) == (ErrorCategory.INVALID_REQUEST, False)
    return caught.value.message


def test_tls_that_the_server_lacks_is_no_outage(host):
    said = refused(f"host={host} user=worker password=hush dbname=postgres sslmode=require")
    assert "server does not support SSL" in said


def test_missing_certificate_of_the_authority_is_no_outage(host, tmp_path):
    with Tls(make_certificate(tmp_path), host) as proxy:
        said = refused(
            f"host=127.0.0.1 port={proxy.port} user=worker password=hush dbname=postgres sslmode=verify-full "
            f"sslrootcert={tmp_path}/none sslnegotiation=direct"
        )
    assert f'root certificate file "{tmp_path}/none" does not exist' in said


class Tls:
    """Takes off the TLS of connections, and passes them on."""

    def __init__(self, files, target):
        self._context, self._target, self.count = server_context(*files), target, 0
        self._context.set_alpn_protocols(["postgresql"])
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._threads = []

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._threads:
            each.join(30)

    def _start(self, *work):
        thread = threading.Thread(target=work[0], args=work[1:])
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client = self._context.wrap_socket(self._server.accept()[0], server_side=True)
                self.count += 1
                server = socket.create_connection((self._target, 5432))
                self._start(self._pass_on, client, server)
                self._start(self._pass_on, server, client)

    def _pass_on(self, source, other):
        with suppress(OSError, ssl.SSLError):
            while part := source.recv(65536):
                other.sendall(part)
        for each in (source, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()
