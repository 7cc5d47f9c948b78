"""Implements the Spanner service over gRPC, and those parts of the two admin services that tests need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
from google.cloud.spanner_admin_database_v1 import types as database_types
from google.cloud.spanner_admin_instance_v1 import types as instance_types
from google.cloud.spanner_v1 import types
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from multiclouddb_spanner_emulator.answers import answered, read
from multiclouddb_spanner_emulator.database import Write
from multiclouddb_spanner_emulator.errors import ServiceError, invalid, unimplemented
from multiclouddb_spanner_emulator.journal import Call
from multiclouddb_spanner_emulator.rows import moment_of
from multiclouddb_spanner_emulator.troubles import Act, Delay, Fail, Hang
from multiclouddb_spanner_emulator.world import World

__all__ = ["handlers"]

_SPANNER: Final = "google.spanner.v1.Spanner"
_DATABASES: Final = "google.spanner.admin.database.v1.DatabaseAdmin"
_INSTANCES: Final = "google.spanner.admin.instance.v1.InstanceAdmin"
_CREATE: Final = re.compile(r"\s*CREATE\s+DATABASE\s+[`\"]?([\w-]+)[`\"]?\s*;?\s*", re.IGNORECASE)
_POSTGRES: Final = 2
_PARTS: Final = 10
_LOOK_SECONDS: Final = 0.05


class _StoppedError(Exception):
    """Raised if the client is no longer listening, or if the server is being stopped."""


class _Service:
    """Implements the methods of the services.

    Each method takes the request and returns the answer, as protobuf messages.
    """

    def __init__(self, world: World) -> None:
        self.world = world

    # -- Sessions and transactions

    def create_session(self, request: Any, call: Call) -> Any:
        multiplexed = request.session.multiplexed and self.world.habits.multiplexed
        role = request.session.creator_role
        return self.world.add_session(request.database, multiplexed=multiplexed, role=role)

    def batch_create_sessions(self, request: Any, call: Call) -> Any:
        made = [
            self.world.add_session(request.database, multiplexed=False) for _ in range(request.session_count)
        ]
        return types.BatchCreateSessionsResponse.pb()(session=made)

    def get_session(self, request: Any, call: Call) -> Any:
        self.world.in_session(request.name)
        return self.world.sessions[request.name]

    def delete_session(self, request: Any, call: Call) -> Any:
        self.world.in_session(request.name)
        if self.world.sessions[request.name].multiplexed:
            raise invalid("A multiplexed session cannot be deleted")
        del self.world.sessions[request.name]
        return empty_pb2.Empty()

    def begin_transaction(self, request: Any, call: Call) -> Any:
        self.world.in_session(request.session)
        return types.Transaction.pb()(id=self.world.add_transaction())

    def rollback(self, request: Any, call: Call) -> Any:
        self.world.in_session(request.session)
        self.world.transactions.discard(request.transaction_id)
        return empty_pb2.Empty()

    def commit(self, request: Any, call: Call) -> Any:
        database = self.world.in_session(request.session)
        if request.transaction_id:
            if request.transaction_id not in self.world.transactions:
                raise ServiceError("NOT_FOUND", "Transaction not found")
            self.world.transactions.discard(request.transaction_id)
        writes = [_write(mutation) for mutation in request.mutations]
        moment = self.world.commit(database, writes, request.request_options.transaction_tag)
        answer = types.CommitResponse.pb()()
        answer.commit_timestamp.FromNanoseconds(moment)
        return answer

    # -- Databases and instances

    def create_database(self, request: Any, call: Call) -> Any:
        found = _CREATE.fullmatch(request.create_statement)
        if found is None:
            raise invalid(f"Not understood: {request.create_statement}")
        made = self.world.add_database(
            request.parent,
            found[1],
            postgres=request.database_dialect == _POSTGRES,
            statements=request.extra_statements,
        )
        answer = _done(database_types.CreateDatabaseMetadata.pb()(database=made.name))
        answer.response.Pack(self._described(made.name))
        return answer

    def get_database(self, request: Any, call: Call) -> Any:
        return self._described(request.name)

    def drop_database(self, request: Any, call: Call) -> Any:
        self.world.databases.pop(request.database, None)
        return empty_pb2.Empty()

    def update_database_ddl(self, request: Any, call: Call) -> Any:
        database = self.world.database(request.database)
        for statement in request.statements:
            database.execute(statement)
        self.world.changed.notify_all()
        metadata = database_types.UpdateDatabaseDdlMetadata.pb()(
            database=database.name, statements=request.statements
        )
        answer = _done(metadata)
        answer.response.Pack(empty_pb2.Empty())
        return answer

    def get_database_ddl(self, request: Any, call: Call) -> Any:
        database = self.world.database(request.database)
        return database_types.GetDatabaseDdlResponse.pb()(statements=database.statements())

    def list_databases(self, request: Any, call: Call) -> Any:
        names = sorted(
            name for name in self.world.databases if name.startswith(f"{request.parent}/databases/")
        )
        return database_types.ListDatabasesResponse.pb()(databases=map(self._described, names))

    def create_instance(self, request: Any, call: Call) -> Any:
        name = f"{request.parent}/instances/{request.instance_id}"
        if name in self.world.instances:
            raise ServiceError("ALREADY_EXISTS", f"Instance already exists: {name}")
        self.world.instances.add(name)
        answer = _done(instance_types.CreateInstanceMetadata.pb()())
        answer.response.Pack(instance_types.Instance.pb()(name=name, state=2))
        return answer

    def get_instance(self, request: Any, call: Call) -> Any:
        if request.name not in self.world.instances:
            raise ServiceError("NOT_FOUND", f"Instance not found: {request.name}")
        return instance_types.Instance.pb()(name=request.name, state=2)

    def delete_instance(self, request: Any, call: Call) -> Any:
        self.world.instances.discard(request.name)
        return empty_pb2.Empty()

    def _described(self, name: str) -> Any:
        database = self.world.database(name)
        dialect = _POSTGRES if database.postgres else 1
        return database_types.Database.pb()(name=name, state=2, database_dialect=dialect)

    # -- Queries

    def execute_streaming_sql(self, request: Any, call: Call, is_active: Callable[[], bool]) -> Iterator[Any]:
        with self.world.changed:
            database = self.world.in_session(request.session)
        if request.resume_token:
            raise unimplemented("resume tokens")

        def meet(call: Call, rows: int | None) -> None:
            self.meet(call, rows, is_active)

        yield from answered(self.world, database, request, call, is_active, meet)

    def partition_read(self, request: Any, call: Call) -> Any:
        """Divide a read into parts, and return the parts in no particular order, as the service does."""
        database = self.world.in_session(request.session)
        database.table(request.table)
        answer = types.PartitionResponse.pb()()
        answer.transaction.id = str(moment_of(self.world, request)).encode()
        count = request.partition_options.max_partitions or _PARTS
        for number in reversed(range(count)):
            answer.partitions.add().partition_token = f"{number}/{count}".encode()
        return answer

    def streaming_read(self, request: Any, call: Call, is_active: Callable[[], bool]) -> Iterator[Any]:
        with self.world.changed:
            database = self.world.in_session(request.session)
        if request.resume_token:
            raise unimplemented("resume tokens")

        def meet(call: Call, rows: int | None) -> None:
            self.meet(call, rows, is_active)

        yield from read(self.world, database, request, call, meet)

    def execute_sql(self, request: Any, call: Call, is_active: Callable[[], bool]) -> Any:
        answer = types.ResultSet.pb()()
        values: list[Any] = []
        for message in self.execute_streaming_sql(request, call, is_active):
            if message.HasField("metadata"):
                answer.metadata.CopyFrom(message.metadata)
            if message.chunked_value:
                raise unimplemented("ExecuteSql with such a large row; use ExecuteStreamingSql")
            values += message.values
        width = len(answer.metadata.row_type.fields)
        for at in range(0, len(values), width):
            answer.rows.add().values.extend(values[at : at + width])
        return answer

    # -- Troubles

    def meet(self, call: Call, rows: int | None, is_active: Callable[[], bool]) -> None:
        """Apply the requested faults to a call."""
        methods = (call.method, "ChangeStream") if call.query is not None else (call.method,)
        token = (call.query.token or "") if call.query is not None else None
        for trouble in self.world.troubles.striking(methods, token, rows):
            match trouble.action:
                case Fail(error):
                    raise error
                case Delay(seconds):
                    trouble.over.wait(seconds)
                    if not is_active():
                        raise _StoppedError
                case Hang():
                    while not trouble.over.wait(_LOOK_SECONDS):
                        if not is_active() or self.world.stopped.is_set():
                            raise _StoppedError
                case Act(act):
                    act()


def _done(metadata: Any) -> operations_pb2.Operation:
    answer = operations_pb2.Operation(name="operations/done", done=True)
    answer.metadata.Pack(metadata)
    return answer


def _write(mutation: Any) -> Write:
    kind = mutation.WhichOneof("operation")
    if kind == "delete":
        keys = mutation.delete.key_set
        if keys.ranges:
            raise unimplemented("key ranges")
        rows = None if keys.all_ else [_values(key) for key in keys.keys]
        return Write(kind, mutation.delete.table, (), rows)
    if kind not in ("insert", "update", "insert_or_update", "replace"):
        raise unimplemented(f"the mutation {kind}")
    body = getattr(mutation, kind)
    return Write(kind, body.table, list(body.columns), [_values(row) for row in body.values])


def _values(row: Any) -> list[Any]:
    return [_value(value) for value in row.values]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind in (None, "null_value"):
        return None
    if kind == "list_value":
        return _values(value.list_value)
    return getattr(value, kind)


_METHODS: Final = {
    _SPANNER: (
        ("CreateSession", types.CreateSessionRequest),
        ("BatchCreateSessions", types.BatchCreateSessionsRequest),
        ("GetSession", types.GetSessionRequest),
        ("DeleteSession", types.DeleteSessionRequest),
        ("BeginTransaction", types.BeginTransactionRequest),
        ("Rollback", types.RollbackRequest),
        ("Commit", types.CommitRequest),
        ("ExecuteSql", types.ExecuteSqlRequest),
        ("ExecuteStreamingSql", types.ExecuteSqlRequest),
        ("StreamingRead", types.ReadRequest),
        ("PartitionRead", types.PartitionReadRequest),
    ),
    _DATABASES: (
        ("CreateDatabase", database_types.CreateDatabaseRequest),
        ("GetDatabase", database_types.GetDatabaseRequest),
        ("DropDatabase", database_types.DropDatabaseRequest),
        ("UpdateDatabaseDdl", database_types.UpdateDatabaseDdlRequest),
        ("GetDatabaseDdl", database_types.GetDatabaseDdlRequest),
        ("ListDatabases", database_types.ListDatabasesRequest),
    ),
    _INSTANCES: (
        ("CreateInstance", instance_types.CreateInstanceRequest),
        ("GetInstance", instance_types.GetInstanceRequest),
        ("DeleteInstance", instance_types.DeleteInstanceRequest),
    ),
}


def handlers(world: World) -> list[grpc.GenericRpcHandler]:
    """Return the handler for a gRPC server."""
    service = _Service(world)
    return [
        grpc.method_handlers_generic_handler(
            name, {method: _handler(service, method, request) for method, request in methods}
        )
        for name, methods in _METHODS.items()
    ]


def _snake(method: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()


def _handler(service: _Service, method: str, request_type: Any) -> grpc.RpcMethodHandler:
    act = getattr(service, _snake(method))
    world = service.world

    def noted(request: Any) -> Call:
        session = getattr(request, "session", "")
        call = Call(method, session if isinstance(session, str) else "", getattr(request, "sql", ""))
        world.journal.note(call)
        return call

    def is_active(context: Any) -> Callable[[], bool]:
        return lambda: bool(context.is_active()) and not world.stopped.is_set()

    def unary(request: Any, context: Any) -> Any:
        call = noted(request)
        with _Ending(call, context):
            if method == "ExecuteSql":
                answer = act(request, call, is_active(context))
            else:
                service.meet(call, None, is_active(context))
                with world.changed:
                    answer = act(request, call)
        return answer

    def streaming(request: Any, context: Any) -> Iterator[Any]:
        call = noted(request)
        with _Ending(call, context):
            yield from act(request, call, is_active(context))

    kinds = {"request_deserializer": request_type.pb().FromString, "response_serializer": _serialized}
    if method in ("ExecuteStreamingSql", "StreamingRead"):
        return grpc.unary_stream_rpc_method_handler(streaming, **kinds)
    return grpc.unary_unary_rpc_method_handler(unary, **kinds)


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class _Ending:
    """Reports the status of a finished call to the client and in the journal."""

    def __init__(self, call: Call, context: Any) -> None:
        self._call = call
        self._context = context

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        call, context = self._call, self._context
        if error is None:
            call.status = "OK"
        elif isinstance(error, ServiceError):
            call.status = error.status.name
            context.set_trailing_metadata(error.details())
            context.abort(error.status, error.message)
        elif isinstance(error, _StoppedError | GeneratorExit):
            call.status = "CANCELLED"
            if isinstance(error, _StoppedError):
                context.abort(grpc.StatusCode.CANCELLED, "The server has stopped, or no client is listening")
        else:
            call.status = "INTERNAL"
            context.abort(grpc.StatusCode.INTERNAL, f"The scripted server failed: {error!r}")
