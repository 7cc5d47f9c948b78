"""Makes the calls to the service with boto3, which handles signing, endpoints and errors."""

from __future__ import annotations

import binascii
import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import orjson
from attrs import frozen
from botocore.exceptions import ChecksumError

from multiclouddb_api import ErrorCategory
from multiclouddb_dynamo.errors import classify
from multiclouddb_dynamo.mapping import in_seconds
from multiclouddb_dynamo.native import DynamoClients
from multiclouddb_dynamo.values import with_halves_marked
from multiclouddb_spi import Deadline, ProviderFault, collector_paused
from multiclouddb_spi.bounded_pools import AnswerBound, bounded_pools
from multiclouddb_spi.errors import classified

T = TypeVar("T")
_Answer = TypeVar("_Answer", bound=Mapping[str, Any])
_DESCRIBES_A_SECOND: Final = 10
_WINDOW_SECONDS: Final = 1.05  # calls may arrive closer together than they were sent
_LEAST_DIGITS: Final = 21  # botocore refuses a shorter number, but some servers number from 1
_JSON: Final = "application/x-amz-json"
# A time in milliseconds, on which botocore's own parser fails; a text of an item has no such quotes.
_LONG_TIME: Final = re.compile(rb'("ApproximateCreationDateTime"\s*:\s*)(\d{12,16}(?:\.\d+)?)(?![\d.eE])')
_AWS_HOST: Final = re.compile(
    r".+\.(amazonaws\.com(\.cn)?|amazonaws\.eu|api\.aws|api\.amazonwebservices\.com\.cn)"
)
_BOUND: Final = AnswerBound(
    256 << 20,
    "an answer of DynamoDB has at most 16 MB of data, which JSON makes at most 14 times as long",
)
# The API reference says 1 MB for GetRecords and Scan, 16 MB for BatchGetItem. A null in a list counts as
# one byte, and becomes {"NULL":true}, in JSON. botocore decompresses nothing.
_SWELLING: Final = 6  # the size of a parsed record in memory as a multiple of its text's size
RECORD_BYTES: Final = 4096  # the first estimate of a record's size in memory


@frozen
class Table:
    """The result of a DescribeTable call."""

    arn: str | None
    enabled: bool
    view_type: str | None
    key_names: tuple[str, ...]
    nbytes: int = 0
    items: int = 0
    replicated: bool = False  # true if it is a replica of a global table
    status: str | None = None
    key_types: tuple[str | None, ...] = ()  # of the names; None if it is not known


class RateLimiter:
    """Limits the number of calls in any second. Several threads can share one object."""

    def __init__(self, a_second: int) -> None:
        self._lock = threading.Lock()
        self._turns = deque([-_WINDOW_SECONDS] * a_second, a_second)

    def wait(self, deadline: Deadline) -> None:
        """Wait until the rate limit allows another call."""
        with self._lock:
            now = time.monotonic()
            due = max(now, self._turns[0] + _WINDOW_SECONDS)
            if due > deadline.at:
                raise ProviderFault.of(
                    ErrorCategory.THROTTLED,
                    "DescribeStream may be called ten times a second and other calls of this client are in "
                    "the queue; raise timeout_seconds, or try again",
                    retryable=True,
                )
            self._turns.append(due)
        if due > now:
            time.sleep(due - now)


class Calls:
    """Makes the calls to the tables and streams of one region."""

    def __init__(self, clients: DynamoClients, *, ours: bool, vendor_retried: bool = False) -> None:
        self._ours, self._vendor_retried = ours, vendor_retried
        self._limiters: dict[str, RateLimiter] = {}
        self._lock = threading.Lock()
        self._told_at: tuple[datetime, float] | None = None
        self._date: str | None = None
        self._plain = threading.local()
        self._closed = False
        self.use(clients)

    def use(self, clients: DynamoClients) -> None:
        """Make all further calls with these clients."""
        self._clients = clients
        if self._ours:
            for client in (clients.dynamodb, clients.streams):
                _bound(client)
                for event in ("after-call", "after-call-error"):
                    client.meta.events.register(event, self._call_ended)
                client.meta.events.register("before-parse", _keep_objects, unique_id="multiclouddb-objects")
                for call in client.meta.service_model.operation_names:
                    name = f"before-parse.{client.meta.service_model.service_id.hyphenize()}.{call}"
                    client.meta.events.register_first(name, _check_sum, unique_id=f"multiclouddb-{name}")
            for client, call in (
                (clients.streams, "dynamodb-streams.GetRecords"),
                (clients.dynamodb, "dynamodb.Scan"),
            ):
                client.meta.events.register(f"before-parse.{call}", self._parse, unique_id="multiclouddb")
        if self._closed:
            self.close()

    @property
    def hosts(self) -> tuple[str, str]:
        """The hosts that are asked for tables and for streams."""
        tables, streams = (
            urlsplit(client.meta.endpoint_url).netloc.rpartition("@")[2]
            for client in (self._clients.dynamodb, self._clients.streams)
        )
        return tables, streams

    @property
    def is_at_aws(self) -> bool:
        """True if tables are asked for at a host of AWS."""
        return _AWS_HOST.fullmatch(self.hosts[0].partition(":")[0]) is not None

    def describe_table(self, name: str) -> Table:
        answer = self._member(self._clients.dynamodb.describe_table(TableName=name), "Table")
        specification = answer.get("StreamSpecification") or {}
        kinds = {entry["KeyType"]: entry["AttributeName"] for entry in whole(answer, "KeySchema")}
        types = {
            entry["AttributeName"]: entry["AttributeType"]
            for entry in answer.get("AttributeDefinitions") or ()
        }
        names = tuple(kinds[kind] for kind in ("HASH", "RANGE") if kind in kinds)
        return Table(
            arn=answer.get("LatestStreamArn"),
            enabled=bool(specification.get("StreamEnabled")),
            view_type=specification.get("StreamViewType"),
            key_names=names,
            key_types=tuple(map(types.get, names)),
            nbytes=answer.get("TableSizeBytes") or 0,
            items=answer.get("ItemCount") or 0,
            replicated=bool(answer.get("Replicas") or answer.get("GlobalTableVersion")),
            status=answer.get("TableStatus"),
        )

    def table_names(self, deadline: Deadline) -> list[str]:
        names: list[str] = []
        for page in self._clients.dynamodb.get_paginator("list_tables").paginate():
            names += self._member(page, "TableNames")
            if deadline.passed():
                raise ProviderFault.of(
                    ErrorCategory.TRANSIENT_FAILURE,
                    f"listing the tables takes too long; {len(names)} were found so far; try again",
                )
        return names

    def describe_stream(
        self, arn: str, deadline: Deadline, *, after: str | None = None, parent: str | None = None
    ) -> dict[str, Any]:
        """Return one page of a stream's shards. At most ten DescribeStream calls are made per second."""
        with self._lock:
            limiter = self._limiters.setdefault(arn, RateLimiter(_DESCRIBES_A_SECOND))
        limiter.wait(deadline)
        asked: dict[str, Any] = {"StreamArn": arn}
        if after is not None:
            asked["ExclusiveStartShardId"] = after
        if parent is not None:
            asked["ShardFilter"] = {"Type": "CHILD_SHARDS", "ShardId": parent}
        found: dict[str, Any] = self._member(
            self._clients.streams.describe_stream(**asked), "StreamDescription"
        )
        return found

    def iterator(self, arn: str, shard_id: str, kind: str, seq: str | None = None) -> str:
        asked = {"StreamArn": arn, "ShardId": shard_id, "ShardIteratorType": kind}
        if seq is not None:
            asked["SequenceNumber"] = seq.zfill(_LEAST_DIGITS)
        return str(self._member(self._clients.streams.get_shard_iterator(**asked), "ShardIterator"))

    def iterator_at(self, arn: str, shard_id: str, time: int) -> str:
        """Return an iterator at the first record since a time, which is in seconds since 1970."""
        answer = self._clients.streams.get_shard_iterator(
            StreamArn=arn,
            ShardId=shard_id,
            ShardIteratorType="AT_TIMESTAMP",
            Timestamp=datetime.fromtimestamp(time, UTC),
        )
        return str(self._member(answer, "ShardIterator"))

    def records(self, iterator: str, limit: int, *, native: bool) -> Mapping[str, Any]:
        """Return `Records`, and `NextShardIterator` unless the shard has ended."""
        self._plain.wanted, self._plain.is_checked = native, False
        answer: dict[str, Any] = self._clients.streams.get_records(ShardIterator=iterator, Limit=limit)
        self._mark(answer, "Records")
        if not answer.get("NextShardIterator"):
            # Both members are optional, but an answer with neither was cut off. Alternator sent an empty text
            # at the end of a shard (scylladb/scylladb#7237).
            answer.pop("NextShardIterator", None)
            whole(answer, "Records")
        return self.hear(answer)

    def scan(
        self, name: str, part: tuple[int, int], after: Mapping[str, Any] | None, limit: int, *, native: bool
    ) -> Mapping[str, Any]:
        """Return one page of a segment: `Items`, and `LastEvaluatedKey` if the segment has further pages."""
        # An eventually consistent read may miss a change that was made just before the snapshot, and the
        # snapshot's stream does not contain this change either.
        self._plain.wanted, self._plain.is_checked = native, False
        segment, total = part
        asked = {} if after is None else {"ExclusiveStartKey": after}
        answer: dict[str, Any] = self._clients.dynamodb.scan(
            TableName=name,
            Segment=segment,
            TotalSegments=total,
            Limit=limit,
            ConsistentRead=True,
            ReturnConsumedCapacity="TOTAL",
            **asked,
        )
        whole(answer, "Items")
        self._mark(answer, "Items")
        return self.hear(answer)

    def items(self, name: str, keys: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[Any]]:
        """Return the items with some of these keys, in any order, and the keys that were not processed.

        The read is strongly consistent, as that of a scan.
        """
        asked: dict[str, Any] = {name: {"Keys": keys, "ConsistentRead": True}}
        answer = self._clients.dynamodb.batch_get_item(RequestItems=asked)
        self._plain.is_checked = False
        self._mark(answer, "Responses")
        # The name of a table may be an ARN, and the answer then contains it as the key.
        tables = self._member(answer, "Responses")
        left = [key for more in (answer.get("UnprocessedKeys") or {}).values() for key in more["Keys"]]
        if not tables and not left:  # DynamoDB names a table of which it has found nothing too
            whole(tables, name)
        return [item for found in tables.values() for item in found], left

    def is_passing(self, error: Exception, *, at_once: bool = False) -> bool:
        """Return True if a failed call may succeed a moment later and has not been retried yet."""
        if isinstance(error, ProviderFault):
            found = error.fault
        else:
            found = classified(partial(classify, vendor_retried=self._vendor_retried), error)
        return found.retryable and not found.vendor_retried and not (at_once and found.retry_after)

    def now(self) -> datetime | None:
        """Return the service's time, never this machine's: that of its last answer, and the time since."""
        told = self._told_at
        return None if told is None else told[0] + timedelta(seconds=time.monotonic() - told[1])

    def close(self) -> None:
        self._closed = True
        if self._ours:
            self._clients.dynamodb.close()
            self._clients.streams.close()

    def _call_ended(self, **_: object) -> None:
        if self._closed:  # botocore opens a pool of connections for a call which `close` has overtaken
            self.close()

    def _member(self, answer: Mapping[str, Any], name: str) -> Any:
        """Return a member that every complete answer contains; only such an answer tells the time.

        What a proxy answers itself has the time of another clock.
        """
        found = whole(answer, name)
        self.hear(answer)
        return found

    def hear(self, answer: _Answer) -> _Answer:
        """Set the clock from the `Date` header of an answer, which may be an error, and return the answer."""
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None and date != self._date:
            self._date = date
            with contextlib.suppress(ValueError):  # the header may come from a proxy
                self._told_at = parsedate_to_datetime(date).astimezone(UTC), time.monotonic()
        return answer

    def _mark(self, answer: dict[str, Any], name: str) -> None:
        """Mark the texts without UTF-8 in a member of an answer that was not parsed by orjson."""
        if not self._plain.is_checked and answer.get(name):
            answer[name] = with_halves_marked(answer[name])

    def _parse(
        self, response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
    ) -> None:
        """Parse a page with orjson, which is four times as fast as botocore's own parser."""
        if response_dict["status_code"] != 200:
            return
        if getattr(self._plain, "wanted", False):
            response_dict["body"] = _LONG_TIME.sub(_time_in_seconds, response_dict["body"])
            return
        if not str(response_dict["headers"].get("content-type", "")).startswith(_JSON):
            return
        try:
            # A page is parsed into about ten thousand objects, and none of them can be garbage yet.
            with collector_paused():
                customized_response_dict.update(orjson.loads(response_dict["body"]))
        except (orjson.JSONDecodeError, TypeError, ValueError):
            # botocore parses this text, or an incomplete one into an empty object; see `whole`.
            return
        self._plain.is_checked = True
        response_dict["body"] = b"{}"


def _check_sum(response_dict: dict[str, Any], **_: object) -> None:
    """Refuse an answer that is damaged. botocore checks this sum only in order to decide on a retry."""
    told = response_dict["headers"].get("x-amz-crc32", "")
    found = binascii.crc32(response_dict["body"])
    if told.isascii() and told.isdecimal() and int(told) != found:
        raise ChecksumError(checksum_type="crc32", expected_checksum=told, actual_checksum=found)


def _time_in_seconds(found: re.Match[bytes]) -> bytes:
    return found[1] + str(in_seconds(float(found[2]))).encode()


def _keep_objects(response_dict: dict[str, Any], **_: object) -> None:
    """Give botocore an empty object, a damaged answer, instead of a text on which its parser fails."""
    text = response_dict["body"].strip()
    if text == b"null" or (response_dict["status_code"] == 200 and not text.startswith(b"{")):
        response_dict["body"] = b"{}"


def _bound(client: Any) -> None:
    """Give up answers that do not arrive: botocore's `read_timeout` begins again with each byte."""
    # If a later version of botocore has other pools, there is only the `read_timeout`.
    session: Any = getattr(getattr(client, "_endpoint", None), "http_session", None)
    manager, pools = getattr(session, "_manager", None), getattr(session, "_pool_classes_by_scheme", None)
    if manager is not None and pools is not None:
        bounded = bounded_pools(pools, _BOUND)
        manager.pool_classes_by_scheme = bounded
        session._pool_classes_by_scheme = bounded  # for the pools of a proxy


def whole(answer: Mapping[str, Any], name: str) -> Any:
    """Return a member that every complete answer contains."""
    # botocore accepts a truncated answer as a success: it does not check the length, and it reads an
    # incomplete JSON text as an empty object, which after `GetRecords` would mean the end of the shard.
    found = answer.get(name)
    if found is None:
        raise ProviderFault.of(
            ErrorCategory.TRANSIENT_FAILURE,
            f"the service's answer was cut off: it has no {name}; try again",
            retryable=True,
        )
    return found


def memory_of(answer: Mapping[str, Any], count: int) -> int:
    """Estimate the memory that the parsed records or items of an answer take."""
    length = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("content-length", "")
    return _SWELLING * int(length) if count and length.isdecimal() else RECORD_BYTES * count


class Series:
    """A sequence of calls that repeats a throttled call at once, if the call before it succeeded."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._moved = calls, False

    def make(self, call: Callable[[], T]) -> T:
        try:
            found = call()
        except Exception as error:
            if not self._moved or not self._calls.is_passing(error, at_once=True):
                raise
            self._moved = False
            found = call()
        self._moved = True
        return found
