"""Answers HTTP requests, and applies the requested faults."""

from __future__ import annotations

import binascii
import threading
import time
import uuid
from typing import Final, assert_never

import attrs
import orjson

from multiclouddb_dynamo_emulator.arguments import Arguments
from multiclouddb_dynamo_emulator.errors import ServiceError
from multiclouddb_dynamo_emulator.http import Reply, Request
from multiclouddb_dynamo_emulator.iterator import ShardIterator
from multiclouddb_dynamo_emulator.journal import Call, Journal
from multiclouddb_dynamo_emulator.store import Store
from multiclouddb_dynamo_emulator.stream_calls import STREAM_CALLS, get_records
from multiclouddb_dynamo_emulator.table_calls import TABLE_CALLS
from multiclouddb_dynamo_emulator.troubles import (
    AFTER,
    BEFORE,
    Act,
    Damage,
    Delay,
    Drop,
    Empty,
    Fail,
    Hang,
    Rewrite,
    Trouble,
    Troubles,
)

__all__ = ["Service"]

_TABLES: Final = "DynamoDB_20120810"
_STREAMS: Final = "DynamoDBStreams_20120810"


class _DroppedError(Exception):
    """Raised if the connection must be closed without an answer."""


def _text(arguments: Arguments, name: str) -> str | None:
    """Return an argument whose type has not been checked yet."""
    value = arguments.get(name)
    return value if isinstance(value, str) else None


@attrs.define
class _Running:
    """A call in progress."""

    operation: str
    arguments: Arguments
    shard: str | None = None
    stream: str | None = None
    renewed: bool = False
    records: int = 0
    code: str | None = None

    @classmethod
    def of(cls, request: Request) -> _Running:
        """Return the call that a request contains.

        If an argument is invalid, the error is reported later, when the call is answered.
        """
        service, _, operation = request.headers.get("x-amz-target", "").partition(".")
        known = {_TABLES: TABLE_CALLS.keys(), _STREAMS: STREAM_CALLS.keys() | {"GetRecords"}}
        if operation not in known.get(service, ()):
            raise ServiceError("UnknownOperationException", f"There is no operation {operation!r} here")
        arguments = Arguments(request.body)
        running = cls(operation, arguments)
        if operation == "GetRecords":
            try:
                iterator = ShardIterator.decoded(arguments.text("ShardIterator", 1, 2048))
            except ServiceError:
                return running
            running.shard, running.stream = iterator.shard_id, iterator.arn
            running.renewed = iterator.renewed
        else:
            running.shard, running.stream = _text(arguments, "ShardId"), _text(arguments, "StreamArn")
        return running


class Service:
    """Answers requests. Several threads can use this object.

    Args:
        store: The state of the server.
        troubles: The requested failures.
        journal: The journal that records each request.
    """

    def __init__(self, store: Store, troubles: Troubles, journal: Journal) -> None:
        self._store, self._troubles, self._journal = store, troubles, journal
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End all waiting calls."""
        self._stopped.set()
        self._troubles.end()

    def __call__(self, request: Request) -> Reply | None:
        """Answer a request."""
        try:
            if "authorization" not in request.headers:
                raise ServiceError("MissingAuthenticationTokenException")
            running = _Running.of(request)
        except ServiceError as error:
            return self._refusal(error)
        began = time.monotonic()
        within = self._journal.enter(running.operation, running.shard, running.stream)
        try:
            self._check_key(request.headers["authorization"])
            return self._serve(running, within)
        except _DroppedError:
            running.code = "dropped"
            return None
        except ServiceError as error:
            running.code = error.code
            return self._refusal(error)
        finally:
            self._note(running, began)

    def _check_key(self, authorization: str) -> None:
        key = authorization.partition("Credential=")[2].partition("/")[0]
        if key in self._store.habits.expired_keys:
            raise ServiceError(
                "ExpiredTokenException", "The security token included in the request is expired"
            )

    def _serve(self, running: _Running, within: bool) -> Reply:
        if not within and self._store.habits.enforce_limits:
            raise ServiceError("LimitExceededException")
        before = self._troubles.striking(BEFORE, running.operation, running.shard, running.renewed)
        empty = False
        for trouble in before:
            empty |= self._meet(trouble)
        body = self._perform(running, empty)
        reply, damages = Reply(200, self._headers(), body), list[Damage]()
        for trouble in self._troubles.striking(
            AFTER, running.operation, running.shard, running.renewed, running.records
        ):
            match trouble.action:
                case Act(act):
                    act()
                case Rewrite(change):
                    answer = orjson.loads(body)
                    change(answer)
                    body = orjson.dumps(answer)
                    reply = attrs.evolve(reply, body=body)
                case Drop(reset=reset):
                    reply = attrs.evolve(reply, cut_after=len(body) // 2, reset=reset)
                    running.code = "dropped"
                case Damage() as damage:
                    damages.append(damage)
                case _:
                    raise AssertionError(trouble)
        # Every answer of the service has this sum (Java's SDK: Crc32ChecksumValidatingInputStream).
        reply = attrs.evolve(reply, headers={**reply.headers, "x-amz-crc32": str(binascii.crc32(reply.body))})
        for damage in damages:
            reply = attrs.evolve(reply, body=reply.body.replace(damage.text, damage.by))
        return reply

    def _meet(self, trouble: Trouble) -> bool:
        """Apply the faults that come before the answer. Return True if the page must be empty."""
        match trouble.action:
            case Fail(error):
                raise error
            case Drop():
                raise _DroppedError
            case Delay(seconds):
                self._stopped.wait(seconds)
            case Hang():
                trouble.over.wait()
            case Empty():
                return True
            case Act() | Rewrite() | Damage():
                raise AssertionError(trouble)
            case _:
                assert_never(trouble.action)
        return False

    def _perform(self, running: _Running, empty: bool) -> bytes:
        with self._store.lock:
            if running.operation == "GetRecords":
                body, running.records = get_records(self._store, running.arguments, empty)
                return body
            if running.operation in STREAM_CALLS:
                return STREAM_CALLS[running.operation](self._store, running.arguments)
            return orjson.dumps(TABLE_CALLS[running.operation](self._store, running.arguments))

    def _headers(self) -> dict[str, str]:
        date = {"Date": self._store.clock.http_date()} if self._store.habits.tells_time else {}
        return {
            **date,
            "Content-Type": "application/x-amz-json-1.0",
            "x-amzn-RequestId": str(uuid.uuid4()),
        }

    def _refusal(self, error: ServiceError) -> Reply:
        headers = self._headers()
        if error.retry_after is not None:
            headers["x-amz-retry-after"] = f"{error.retry_after * 1000:.0f}"
        return Reply(error.status, headers, error.body())

    def _note(self, running: _Running, began: float) -> None:
        ended = time.monotonic()
        arguments = running.arguments
        self._journal.leave(
            Call(
                running.operation,
                running.shard,
                running.stream,
                running.code,
                running.records,
                arguments.get("Limit"),
                arguments.get("ShardIteratorType"),
                began,
                ended - began,
            )
        )
