"""The harness for Cloud Spanner, and what a run on it needs and leaves."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import Any, ClassVar, Final

import grpc
from google.api_core.exceptions import AlreadyExists, GoogleAPICallError, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_admin_database_v1.types import Database

from multiclouddb_api import ClientConfig, ResourceAddress
from multiclouddb_certify.certification import (
    LOCAL,
    PREFIX,
    Certification,
    DrillHarness,
    Granted,
    Permission,
    Run,
    RunPlace,
)
from multiclouddb_certify.wire import Call, WireObserver, WireResponse
from multiclouddb_conformance.harness import CollectionKind, Harness, Spelled, Write
from multiclouddb_conformance.values import KEYS, VALUES
from multiclouddb_spanner.capabilities import CAPABILITIES
from multiclouddb_spanner.config import SpannerConfig
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi.connection import is_loopback

__all__ = [
    "CERTIFICATION",
    "COLUMNS",
    "SpannerCertification",
    "SpannerHarness",
    "columns_of",
    "native_instance",
]

_COUNTER: Final = itertools.count()
_SECONDS: Final = 120
_EXTRA: Final = "certify_extra"
_CREATING: Final = Database.State.CREATING
_ACTIONS: Final = (
    "spanner.databases.create", "spanner.databases.drop", "spanner.databases.list", "spanner.databases.read",
    "spanner.databases.select", "spanner.databases.updateDdl", "spanner.databases.write",
    "spanner.sessions.create",
)  # fmt: skip

# Maps each field to the type of its column. All other fields of a document share one further column.
COLUMNS: Final = {
    "n": "INT64", "number": "INT64", "probe": "INT64", "kept": "STRING(MAX)", "text": "STRING(MAX)",
    "list": "JSON", "added": "JSON", "of_bool": "BOOL", "of_bytes": "BYTES(MAX)", "of_decimal": "NUMERIC",
    "of_float": "FLOAT64", "of_int": "INT64", "of_json": "JSON", "of_text": "STRING(MAX)",
}  # fmt: skip
_TYPES: Final[Mapping[type, str]] = {
    bool: "of_bool", bytes: "of_bytes", Decimal: "of_decimal", float: "of_float", int: "of_int",
    dict: "of_json", list: "of_json", str: "of_text", type(None): "of_text",
}  # fmt: skip


def columns_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document by column."""
    return {_TYPES[type(value)] if name == "value" else name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    """Return a number in the form that Spanner returns: 1.50 becomes 1.5."""
    return value.normalize() if isinstance(value, Decimal) else value


def _native(name: str, value: Any) -> Any:
    if value is not None and COLUMNS.get(name) == "JSON":
        return json.dumps(value)
    return base64.b64encode(value) if isinstance(value, bytes) else value


@cache
def native_instance(url: str) -> Any:
    """Return Google's object for the instance of a URL; a process makes it once."""
    return _client(url).instance(SpannerConfig.from_client(ClientConfig("spanner", {"url": url})).instance)


@cache
def _client(url: str) -> Any:
    config = SpannerConfig.from_client(ClientConfig("spanner", {"url": url}))
    local: dict[str, Any] = {}
    if config.emulator_host is not None:
        local = {
            "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
            "client_options": {"api_endpoint": config.emulator_host},
        }
    return spanner.Client(project=config.project, disable_builtin_metrics=True, **local)


def _drop(database: Any) -> None:
    """Drop a database; a first try that got no answer may have dropped it."""
    with suppress(NotFound):
        database.drop()


def _wait_ready(database: Any) -> None:
    until = time.monotonic() + _SECONDS
    while True:
        database.reload()
        if database.state != _CREATING:
            return
        if time.monotonic() > until:
            raise TimeoutError(f"{database.name} is still being created after {_SECONDS} seconds")
        time.sleep(1)


def _has_extra(database: Any) -> bool:
    database.reload()
    return any(_EXTRA in statement for statement in database.ddl_statements)


class SpannerHarness(DrillHarness):
    """A harness that writes with google-cloud-spanner; each test has its own database."""

    capabilities = CAPABILITIES
    plugin = PLUGIN
    rounding = timedelta(microseconds=1)
    can_several = False  # the service chooses the number of partitions
    can_split = can_merge = False  # it splits by itself, or not at all
    can_trim = can_poison = can_expire = can_keys_only = False
    can_notices = can_other_options = can_secrets = False
    # gRPC's handler of a fork ends about one in a hundred such children with SIGSEGV (grpc/grpc issue 32992).
    can_fork_in_calls = False
    value_types = frozenset(VALUES) - {"integer over 64 bit", "infinity", "datetime", "uuid", "set"}
    key_types = frozenset(KEYS) & {"text", "unicode"}
    url: ClassVar[str]
    prefix: ClassVar[str] = PREFIX
    for_all: ClassVar[bool] = False  # True if one change stream watches every table of the database
    _has_stream = False

    def open(self) -> None:
        """Find the instance."""
        self.instance = native_instance(self.url)
        self.databases: list[Any] = []

    def close(self) -> None:
        """Drop the database."""
        for database in self.databases:
            _drop(database)

    def keep(self) -> None:
        """Leave the database when the harness is closed."""
        self.databases.clear()

    def alter(self, address: ResourceAddress, *, column: bool) -> None:
        """Add a column to the table, or drop it."""
        database = self._database(address)
        if _has_extra(database) is column:
            return
        change = f"ADD COLUMN {_EXTRA} STRING(MAX)" if column else f"DROP COLUMN {_EXTRA}"
        try:
            database.update_ddl([f"ALTER TABLE {address.collection} {change}"]).result(_SECONDS)
        except GoogleAPICallError:
            # The same statement of a killed process, or of a first try, may have been carried out since then.
            if _has_extra(database) is not column:
                raise

    def _database(self, address: ResourceAddress) -> Any:
        name = str(address.database)
        made = (each for each in self.databases if each.database_id == name)
        return next(made, None) or self.instance.database(name)

    def config(self) -> ClientConfig:
        """Return the configuration of the URL."""
        return ClientConfig("spanner", {"url": self.url})

    def run(self, statements: Sequence[str]) -> str:
        """Change the schema, in a database that the first statements create; return its id."""
        if self.databases:
            self.databases[0].update_ddl(statements).result(_SECONDS)
        else:
            name = f"{self.prefix}-{next(_COUNTER)}"
            made = self.instance.database(name, ddl_statements=statements)
            try:
                made.create().result(_SECONDS)
            except AlreadyExists:
                # A killed process, or a first try, has asked for it; the name of a run is given only once.
                if Run.of(name) is None:
                    raise
                _wait_ready(made)
            self.databases.append(made)
        return str(self.databases[0].database_id)

    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Create a table with its change stream."""
        del partitions
        return self._table(name, kind, "STRING(MAX)")

    def spelled(self, name: str) -> Spelled:
        """Create a table whose keys are numbers."""
        address = self._table(name, CollectionKind.PLAIN, "NUMERIC")

        def write(value: Any, n: int | None) -> None:
            self.write(address, [Write(value, None if n is None else {"n": n})])

        return Spelled(
            address, [Decimal("1.5"), Decimal("1.50"), Decimal(2), Decimal("2.0")], self.key, write
        )

    def _table(self, name: str, kind: CollectionKind, key: str) -> ResourceAddress:
        capture = "NEW_ROW_AND_OLD_VALUES" if kind is CollectionKind.OLD_IMAGES else "NEW_ROW"
        watched = "ALL" if self.for_all else name
        table, stream = self.ddl(name, key, watched, f"value_capture_type = '{capture}'")
        self.statements = [table] if self.for_all and self._has_stream else [table, stream]
        self._has_stream = True
        return ResourceAddress(self.run(self.statements), name)

    def ddl(self, name: str, key: str, watched: str, options: str) -> tuple[str, str]:
        """Return the statements that create a table and its change stream."""
        columns = ", ".join(f"{column} {form}" for column, form in COLUMNS.items())
        return (
            f"CREATE TABLE {name} (id {key} NOT NULL, {columns}) PRIMARY KEY (id)",
            f"CREATE CHANGE STREAM {self.stream(name)} FOR {watched} OPTIONS ({options})",
        )

    def stream(self, table: str | None) -> str:
        """Return the name of the change stream that watches a table."""
        return "all_tables" if self.for_all else f"{table}_stream"

    def document(self, key: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row, which has every column."""
        return {"id": key, **dict.fromkeys(COLUMNS), **columns_of(fields)}

    def write(self, address: ResourceAddress, writes: Sequence[Write]) -> None:
        """Write in one transaction."""
        with self._database(address).batch() as batch:
            for write in writes:
                if write.document is None:
                    keys = spanner.KeySet(keys=[[write.key]])  # type: ignore[no-untyped-call]
                    batch.delete(address.collection, keys)
                else:
                    row = self.document(write.key, write.document)
                    values = [_native(name, value) for name, value in row.items()]
                    batch.insert_or_update(address.collection, list(row), [values])

    def recreate(self, address: ResourceAddress) -> None:
        """Drop and create the table with its change stream."""
        name = address.collection
        self.run([f"DROP CHANGE STREAM {self.stream(name)}", f"DROP TABLE {name}", *self.statements])


class ScriptedHarness(SpannerHarness):
    """A harness for our scripted server, whose control API splits, merges and moves the clock."""

    can_several = can_split = can_merge = can_trim = can_poison = can_expire = True
    can_read_past_trim = False  # a position before the earliest timestamp is always refused
    can_late_children = can_audit = False  # a partition ends only when its children are named

    def create(self, name: str, kind: CollectionKind, partitions: int) -> ResourceAddress:
        """Create a table whose change stream begins with so many partitions."""
        self.control("initial_partitions", count=partitions)
        return super().create(name, kind, partitions)

    def split(self, address: ResourceAddress, partition_id: str) -> None:
        """Split a partition in two."""
        self.control("split", token=self._token(address, partition_id))

    def merge(self, address: ResourceAddress, a: str, b: str) -> None:
        """Merge two partitions."""
        first, second = (self._token(address, each) for each in (a, b))
        self.control("merge", first=first, second=second)

    def trim(self, address: ResourceAddress) -> None:
        """Let more than a day pass, which is how long a stream keeps its changes."""
        del address
        self.advance(25 * 3600)

    def advance(self, seconds: float) -> None:
        """Move the server's clock forward."""
        self.control("advance", seconds=seconds)

    def expire(self, address: ResourceAddress, key: Any) -> None:
        """Delete a row as a row deletion policy does."""
        place = {"database": self._database(address).name, "table": address.collection}
        self.control("expire_row", **place, key=[key])

    def poison(self, address: ResourceAddress, key: Any) -> None:
        """Write a record whose values are no JSON."""
        self.control("poison", **self._stream(address), table=address.collection, key=[key])

    def now(self) -> datetime:
        """Return the time of the server's clock."""
        return datetime.fromisoformat(self.control("now"))

    def _stream(self, address: ResourceAddress) -> dict[str, str]:
        return {"database": self._database(address).name, "stream": self.stream(address.collection)}

    def _token(self, address: ResourceAddress, partition_id: str) -> str:
        tokens = self.control("open_partitions", **self._stream(address))
        (found,) = (token for token in tokens if token in partition_id)
        return str(found)

    def control(self, command: str, **arguments: Any) -> Any:
        """Call the control API."""
        return _control(self.url, command, **arguments)


def _control(url: str, command: str, **arguments: Any) -> Any:
    config = SpannerConfig.from_client(ClientConfig("spanner", {"url": url}))
    with grpc.insecure_channel(str(config.emulator_host)) as channel:
        asked = json.dumps({"command": command, **arguments}).encode()
        answer = channel.unary_unary("/multiclouddb.emulator.Spanner/Control")(asked, timeout=10)
    return json.loads(answer)["result"]


class SpannerCertification(Certification):
    """Cloud Spanner: the nodes of the instance are billed by the hour, whatever it does."""

    provider_id = "spanner"
    suite = "multiclouddb_certify.suites.spanner"
    collection_seconds = 30.0

    def place(self, url: str) -> RunPlace:
        """Look up the instance."""
        instance = native_instance(url)
        found = _client(url).instance_admin_api.get_instance(name=instance.name)
        region = str(found.config).rpartition("/")[2] or None
        config = SpannerConfig.from_client(ClientConfig("spanner", {"url": url}))
        if _is_local(url):
            return RunPlace(LOCAL, region, "a server on this machine")
        return RunPlace(config.project, region, "Cloud Spanner")

    def creates(self, url: str, run: Run) -> Sequence[str]:
        """Return the databases."""
        return (f"databases {run.prefix}-…, one at a time as a rule, on the instance as it is",)

    def permissions(self, url: str, run: Run) -> Sequence[Permission]:
        """Ask IAM which permissions the caller has on the instance."""
        if _is_local(url):
            return [
                Permission(each, Granted.UNKNOWN, "a server on this machine has no IAM") for each in _ACTIONS
            ]
        instance = native_instance(url)
        answer = _client(url).instance_admin_api.test_iam_permissions(
            resource=instance.name, permissions=list(_ACTIONS)
        )
        return [
            Permission(each, Granted.YES if each in answer.permissions else Granted.NO) for each in _ACTIONS
        ]

    def harness(self, url: str, run: Run) -> type[Harness]:
        """Return the harness of the service and of Google's emulator, or of our scripted server."""
        base = ScriptedHarness if _is_scripted(url) else SpannerHarness
        return type(base.__name__, (base,), {"url": url, "prefix": run.prefix})

    def wire(self, observer: WireObserver) -> AbstractContextManager[None]:
        """Show the calls of gRPC."""
        return grpc_wire(observer)

    def found(self, url: str) -> Iterator[str]:
        """Return the databases with the prefix."""
        instance = native_instance(url)
        names = [each.name.rpartition("/")[2] for each in instance.list_databases()]
        yield from (name for name in names if Run.of(name))

    def remove(self, url: str, name: str) -> None:
        """Drop a database."""
        _drop(native_instance(url).database(name))

    def versions(self) -> Mapping[str, str]:
        """Return the version of google-cloud-spanner."""
        return {"google-cloud-spanner": version("google-cloud-spanner")}


def _is_local(url: str) -> bool:
    host = SpannerConfig.from_client(ClientConfig("spanner", {"url": url})).emulator_host
    return host is not None and is_loopback(host.rpartition(":")[0])


def _is_scripted(url: str) -> bool:
    if not _is_local(url):
        return False
    try:
        _control(url, "now")
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:  # Google's emulator has no such method
            return False
        raise
    return True


_SERVICE: Final = "/google."
_CALLS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class _Shown:
    """A gRPC method that shows its requests to an observer."""

    def __init__(self, method: str, native: Any, observer: WireObserver) -> None:
        self._operation = method.rpartition("/")[2]
        self._native, self._observer = native, observer

    def _send(self, send: Any, request: Any, arguments: Any, settings: Any) -> Any:
        metadata = dict(settings.get("metadata") or ())
        call = Call(self._operation, metadata, request)
        self._observer.asked(call)
        try:
            answer = send(request, *arguments, **settings)
        except grpc.RpcError:
            self._observer.answered(call, WireResponse(0, {}))
            raise
        self._observer.answered(call, WireResponse(0, {}))
        return answer

    def __call__(self, request: Any, *arguments: Any, **settings: Any) -> Any:
        return self._send(self._native, request, arguments, settings)

    def with_call(self, request: Any, *arguments: Any, **settings: Any) -> Any:
        return self._send(self._native.with_call, request, arguments, settings)

    def future(self, request: Any, *arguments: Any, **settings: Any) -> Any:
        return self._send(self._native.future, request, arguments, settings)


@contextmanager
def grpc_wire(observer: WireObserver) -> Iterator[None]:
    """Show the observer each call of every channel of gRPC that this process makes."""
    # gRPC names only the interface of its channels, not their class.
    with grpc.insecure_channel("localhost") as unused:
        kind: Any = type(unused)
    before = {name: getattr(kind, name) for name in _CALLS}

    def shown(make: Any) -> Any:
        def made(channel: Any, method: str, *arguments: Any, **settings: Any) -> Any:
            native = make(channel, method, *arguments, **settings)
            return _Shown(method, native, observer) if method.startswith(_SERVICE) else native

        return made

    for name, make in before.items():
        setattr(kind, name, shown(make))
    try:
        yield
    finally:
        for name, make in before.items():
            setattr(kind, name, make)


CERTIFICATION: Final = SpannerCertification()
