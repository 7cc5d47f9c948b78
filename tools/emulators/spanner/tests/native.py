"""Runs the vendor's client with any server, and offers the actions that all tests need."""

import contextlib
import itertools
import os
import socket
import subprocess
from datetime import datetime, timedelta

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1 import DatabaseDialect
from google.cloud.spanner_v1.types import (
    CreateSessionRequest,
    ExecuteSqlRequest,
    Session,
    TransactionOptions,
    TransactionSelector,
    Type,
    TypeCode,
)
from google.protobuf import struct_pb2
from google.protobuf.json_format import MessageToDict

from multiclouddb_spanner_emulator.google import google_emulator as program

PROJECT, INSTANCE = "tests", "parity"
COUNTER = itertools.count()
# Longer than any answer takes on a busy machine.
SECONDS = 60
_TYPES = {
    "s": Type(code=TypeCode.TIMESTAMP),
    "e": Type(code=TypeCode.TIMESTAMP),
    "t": Type(code=TypeCode.STRING),
    "h": Type(code=TypeCode.INT64),
}
_STRONG = TransactionOptions.ReadOnly(strong=True, return_read_timestamp=True)


@contextlib.contextmanager
def google_emulator(*flags):
    """Start Google's emulator, and return its host and port."""
    given = os.environ.get("SPANNER_EMULATOR_HOST")
    if program() is None and given and not flags:
        yield given
        return
    assert program() is not None, (
        "Google's Cloud Spanner emulator is not installed: gcloud components install"
    )
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        host = f"localhost:{listener.getsockname()[1]}"
    process = subprocess.Popen(
        [program(), "--host_port", host, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with grpc.insecure_channel(host) as channel:
            grpc.channel_ready_future(channel).result(timeout=SECONDS)
        yield host
    finally:
        process.kill()
        process.wait()


class Native:
    """A database on a server, which is used through the vendor's client.

    Args:
        host: The host and port of the server.
        statements: The DDL statements.
        postgres: True for the PostgreSQL dialect.
    """

    def __init__(self, host, *statements, postgres=False):
        self.postgres = postgres
        self.client = spanner.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": host},
            disable_builtin_metrics=True,
        )
        configuration = f"projects/{PROJECT}/instanceConfigs/emulator-config"
        self.instance = self.client.instance(INSTANCE, configuration_name=configuration, node_count=1)
        if not self.instance.exists():
            self.instance.create().result(SECONDS)
        name = f"db-{os.getpid()}-{next(COUNTER)}"
        if postgres:
            self.database = self.instance.database(name, database_dialect=DatabaseDialect.POSTGRESQL)
            self.database.create().result(SECONDS)
            if statements:
                self.ddl(*statements)
        else:
            self.database = self.instance.database(name, ddl_statements=statements)
            self.database.create().result(SECONDS)
        self.api = self.database.spanner_api
        asked = CreateSessionRequest(database=self.database.name, session=Session(multiplexed=True))
        self.session = self.api.create_session(request=asked, retry=None, timeout=SECONDS).name

    def ddl(self, *statements):
        self.database.update_ddl(statements).result(SECONDS)

    def batch(self):
        return self.database.batch()

    def messages(self, sql, params=None, *, timeout=SECONDS, session=None, transaction=None):
        """Return the messages that answer a statement, as they arrive."""
        bound = struct_pb2.Struct()
        types = {}
        for name, value in (params or {}).items():
            bound[name] = value
            types[name] = _TYPES.get(name) or list(_TYPES.values())[int(name[1:]) - 1]
        chosen = transaction or TransactionOptions(read_only=_STRONG)
        request = ExecuteSqlRequest(
            session=session or self.session,
            sql=sql,
            params=bound,
            param_types=types,
            transaction=TransactionSelector(single_use=chosen),
        )
        return self.api.execute_streaming_sql(request=request, timeout=timeout)

    def ask(self, sql, params=None, **settings):
        """Return the column names and the rows of an answer that contains no chunked values."""
        messages = list(self.messages(sql, params, **settings))
        names = [field.name for field in messages[0].metadata.row_type.fields]
        values = [MessageToDict(value) for message in messages for value in message._pb.values]
        return names, [values[at : at + len(names)] for at in range(0, len(values), len(names))]

    def now(self):
        """Return the timestamp of a strong read."""
        (message,) = self.messages("SELECT 1")
        return short(message._pb.metadata.transaction.read_timestamp.ToJsonString())

    def stream_sql(self, stream):
        if self.postgres:
            return f"SELECT * FROM spanner.read_json_{stream}($1,$2,$3,$4,NULL)"
        return (
            f"SELECT ChangeRecord FROM READ_{stream}(start_timestamp=>@s,end_timestamp=>@e,"
            "partition_token=>@t,heartbeat_milliseconds=>@h)"
        )

    def read(self, stream, start, end=None, token=None, beat="10000", **settings):
        """Return the rows of a change stream query: data, heartbeats and children, each in a list."""
        names = ("p1", "p2", "p3", "p4") if self.postgres else ("s", "e", "t", "h")
        params = dict(zip(names, (start, end, token, beat), strict=True))
        _, rows = self.ask(self.stream_sql(stream), params, **settings)
        return [row[0] if self.postgres else row[0][0] for row in rows]

    def tokens(self, stream, start):
        return [row[2][0][2][0][0] for row in self.read(stream, start)]

    def everything(self, stream, start, end):
        """Return the data of all partitions, in the order of their commits."""
        rows = [row for token in self.tokens(stream, start) for row in self.read(stream, start, end, token)]
        return sorted((row[0][0] for row in rows if row[0]), key=lambda told: (told[0], told[1]))


def refused(call):
    """Return the status and the message of an error."""
    try:
        found = call()
    except GoogleAPICallError as error:
        return error.grpc_status_code.name, error.message
    return "OK", found


def later(moment, microseconds):
    """Return a timestamp that is later by the given time."""
    base, _, fraction = moment.rstrip("Z").partition(".")
    whole = datetime.fromisoformat(base) + timedelta(
        microseconds=int(fraction.ljust(6, "0")[:6]) + microseconds
    )
    return short(whole.isoformat() + "Z")


def short(moment):
    """Return a timestamp without trailing zeros, as records contain it."""
    return moment.rstrip("Z").rstrip("0").rstrip(".") + "Z" if "." in moment else moment
