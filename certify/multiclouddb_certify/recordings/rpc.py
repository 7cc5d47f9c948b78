"""Reads and sends exchanges of Spanner's gRPC as JSON."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory, timestamp_pb2

from multiclouddb_certify.recordings.rules import OPEN, WORDS, Rules, Store
from multiclouddb_certify.wire import Call, WireResponse

__all__ = ["RULES", "SpannerCodec"]

RULES: Final = Rules(
    {
        **dict.fromkeys(("Session.name", "GetSessionRequest.name", "DeleteSessionRequest.name"), "session"),
        "session": "session",
        "transaction.id": "transaction",
        "Transaction.id": "transaction",
        "transaction_id": "transaction",
        "server_transaction_id": "transaction text",
        "record_sequence": "sequence",
        "partition_token": "partition",
        "parent_partition_tokens": "partition",
        "child_partitions.token": "partition",
        "params.t": "partition",
        **dict.fromkeys(
            (
                "create_time", "commit_timestamp", "read_timestamp", "start_timestamp", "min_read_timestamp",
                "approximate_last_use_time", "earliest_version_time", "version_time", "params.s", "params.e",
                "earliest",
            ),
            "time",
        ),
        "Operation.name": "operation",
        "message": WORDS,
        "precommit_token": "token",
    },
    # The state of an operation and the number of heartbeats depend on the time that has passed.
    dropped=frozenset(
        {
            "Operation.done", "Operation.metadata", "Operation.response", "heartbeat_record", "seqno",
            "request_options.request_tag", "PartialResultSet.last", "stats", "cache_update",
        }
    ),
    same=frozenset({"session", "partition", "transaction text"}),
)  # fmt: skip
"""What differs in every run, on every server."""
_OPERATIONS: Final = "/google.longrunning.Operations/GetOperation"
_STREAMS: Final = ("ExecuteStreamingSql", "StreamingRead")
_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_EARLIEST: Final = re.compile(r"earliest read timestamp: ([\dT:.+-]+\dZ?)")


def _plain(message: Any) -> Any:
    """Return the message of protobuf in a message of proto-plus."""
    kind: Any = type(message)
    return kind.pb(message) if hasattr(kind, "pb") else message


def _as_json(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = _renamed(json_format.MessageToDict(message, preserving_proto_field_name=True))
    return found


def _renamed(tree: Any) -> Any:
    """Return a message whose field `type_` has the name that it has in JSON."""
    match tree:
        case dict():
            return {name.removesuffix("_"): _renamed(each) for name, each in tree.items()}
        case list():
            return [_renamed(each) for each in tree]
        case _:
            return tree


def _class_of(name: str) -> Any:
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))


class _Tee:
    """A stream of messages that the SDK reads; the messages are kept."""

    def __init__(self, native: Any, ended: Callable[[list[Any], Any], None]) -> None:
        self._native, self._ended = native, ended
        self._messages: list[Any] = []

    def _end(self, status: Any) -> None:
        ended, self._ended = self._ended, lambda *_: None
        ended(self._messages, status)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            message = next(self._native)
        except StopIteration:
            self._end("OK")
            raise
        except grpc.RpcError as error:
            self._end(error)
            raise
        self._messages.append(message)
        return message

    def cancel(self) -> Any:
        self._end(OPEN)
        return self._native.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class SpannerCodec:
    """Reads the calls of Spanner.

    Args:
        host: The host and port of the server.
        instance: The full name of the instance, which is not in a recording.
    """

    rules = RULES

    def __init__(self, host: str, instance: str) -> None:
        self._host, self._instance = host, instance

    def secrets(self) -> Mapping[str, str]:
        """Return the names of the project and of the instance."""
        return {self._instance: "instance", self._instance.partition("/instances/")[0]: "project"}

    def read(self, call: Call, answer: WireResponse, store: Store) -> None:
        """Read a call, whose messages come later if they are a stream."""
        # How often an operation is asked for depends on the time.
        if call.url == _OPERATIONS:
            return
        asked = _plain(call.body)
        kind = asked.DESCRIPTOR
        request = {"method": call.url, "type": kind.full_name, kind.name: _as_json(asked)}

        def ended(messages: list[Any], status: Any) -> None:
            def exchange() -> dict[str, Any]:
                got = answer_of([_plain(each) for each in messages], status)
                return {"operation": call.operation, "request": request, "answer": got}

            store(exchange)

        native = answer.native
        if isinstance(native, grpc.RpcError) and not hasattr(native, "add_done_callback"):
            ended([], native)
        elif call.operation in _STREAMS:
            answer.native = _Tee(native, ended)
        elif hasattr(native, "add_done_callback"):
            native.add_done_callback(lambda done: ended(*_outcome(done)))
        else:
            ended([native[0] if isinstance(native, tuple) else native], "OK")

    def sender(self) -> SpannerSender:
        """Open a channel."""
        return SpannerSender(self._host)

    def following(
        self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]] | None:
        """Return None: a stream is read on by itself."""
        del operation, request, answer
        return None


def _outcome(done: Any) -> tuple[list[Any], Any]:
    error = done.exception()
    return ([done.result()], "OK") if error is None else ([], error)


def answer_of(messages: list[Any], status: Any) -> dict[str, Any]:
    """Return messages and the status in the form of the recording; the parts of a result are put together."""
    found: dict[str, Any] = {"status": status if isinstance(status, str) else status.code().name}
    if not isinstance(status, str):
        found["message"] = status.details() or ""
        earliest = _EARLIEST.search(found["message"])
        if earliest is not None:
            # The client reads on from there, in whole microseconds.
            moment = timestamp_pb2.Timestamp()
            moment.FromJsonString(earliest[1])
            moment.FromMicroseconds(-(-moment.ToNanoseconds() // 1000))
            found["earliest"] = moment.ToJsonString()
    if messages:
        found["type"] = messages[0].DESCRIPTOR.full_name
        bodies = [_as_json(each) for each in messages]
        body = _whole(bodies) if messages[0].DESCRIPTOR.name == "PartialResultSet" else bodies[0]
        found[messages[0].DESCRIPTOR.name] = body
    return found


def _whole(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows of a result with the names of their columns, whatever the parts in which they came."""
    metadata = parts[0].get("metadata", {})
    columns = metadata.get("row_type", {}).get("fields", [])
    values: list[Any] = []
    is_open = False
    for part in parts:
        mine = part.get("values", [])
        if is_open and mine:
            values.append(_joined(values.pop(), mine[0]))
            mine = mine[1:]
        values += mine
        is_open = part.get("chunked_value", is_open and not part.get("values"))
    width = max(1, len(columns))
    rows = [_named(columns, values[place : place + width]) for place in range(0, len(values), width)]
    rows = [each for each in rows if not _is_noise(each)]
    # The type of a change stream is long, and most answers about one have no rows.
    kinds = {each.get("name", ""): _kind(each["type"]) if rows else each["type"]["code"] for each in columns}
    rest = {name: each for name, each in metadata.items() if name != "row_type"}
    return {"columns": kinds, **rest, "rows": rows}


def _is_noise(row: dict[str, Any]) -> bool:
    """Return True for a heartbeat, and for a row about the tables that every database has."""
    records = row.get("ChangeRecord")
    is_heartbeat = isinstance(records, list) and all(each.get("heartbeat_record") for each in records)
    return is_heartbeat or row.get("table_schema") == "INFORMATION_SCHEMA"


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str):
        return first + second
    if first and second and isinstance(first[-1], (str, list)) and type(first[-1]) is type(second[0]):
        return [*first[:-1], _joined(first[-1], second[0]), *second[1:]]
    return [*first, *second]


def _kind(of: Mapping[str, Any]) -> str:
    match of["code"]:
        case "ARRAY":
            return f"ARRAY<{_kind(of['array_element_type'])}>"
        case "STRUCT":
            fields = of.get("struct_type", {}).get("fields", [])
            return f"STRUCT<{', '.join(each.get('name', '') + ' ' + _kind(each['type']) for each in fields)}>"
        case code:
            return str(code)


def _named(fields: Iterable[Mapping[str, Any]], values: list[Any]) -> dict[str, Any]:
    return {
        each.get("name", ""): _value(each["type"], value) for each, value in zip(fields, values, strict=False)
    }


def _value(of: Mapping[str, Any], value: Any) -> Any:
    if value is None:
        return None
    match of["code"]:
        case "ARRAY":
            return [_value(of["array_element_type"], each) for each in value]
        case "STRUCT":
            return _named(of.get("struct_type", {}).get("fields", []), value)
        case _:
            return value


class SpannerSender:
    """Sends calls over one channel."""

    def __init__(self, host: str) -> None:
        self._channel = grpc.insecure_channel(host)

    def send(self, operation: str, request: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
        """Send a call, and read as much of a stream as the recording has."""
        del operation
        # The client ended it before anything came: there is nothing to compare.
        if answer["status"] == OPEN and "type" not in answer:
            return answer_of([], OPEN)
        asked = _class_of(request["type"])()
        message = json_format.ParseDict(request[asked.DESCRIPTOR.name], asked)
        path, kind = request["method"], answer.get("type")
        # An answer without a message says nothing of its type.
        result = _class_of(kind or "google.protobuf.Empty")
        body = answer.get(result.DESCRIPTOR.name, {})
        messages: list[Any] = []
        status: Any = "OK"
        metadata = [("x-goog-spanner-route-to-leader", "true")]
        settings = {"timeout": _SECONDS, "metadata": metadata}
        serializers = {
            "request_serializer": lambda each: each.SerializeToString(),
            "response_deserializer": result.FromString,
        }
        try:
            if path.rpartition("/")[2] in _STREAMS:
                stream = self._channel.unary_stream(path, **serializers)(message, **settings)
                for each in stream:
                    messages.append(each)
                    is_whole = len(_whole([_as_json(one) for one in messages])["rows"]) >= len(
                        body.get("rows", [])
                    )
                    if answer["status"] == OPEN and is_whole:
                        status = OPEN
                        stream.cancel()
                        break
            else:
                messages.append(self._channel.unary_unary(path, **serializers)(message, **settings))
                if result.DESCRIPTOR.name == "Operation":
                    self._wait(messages[0])
        except grpc.RpcError as error:
            status = error
        return answer_of(messages, status)

    def _wait(self, operation: Any) -> None:
        kind = type(operation)
        ask = self._channel.unary_unary(
            _OPERATIONS,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        while not operation.done:
            time.sleep(_PAUSE_SECONDS)
            asked = _class_of("google.longrunning.GetOperationRequest")(name=operation.name)
            operation = ask(asked, timeout=_SECONDS)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
