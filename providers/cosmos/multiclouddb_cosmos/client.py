"""Makes the calls to one account.

Each call is one request for a container, for its ranges, or for one page of one range.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from typing import Any, Final

import orjson
from attrs import frozen
from azure.core.exceptions import DecodeError
from azure.cosmos import ContainerProxy, CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.cosmos.partition_key import NonePartitionKeyValue, NullPartitionKeyValue

from multiclouddb_api import ErrorCategory, ResourceAddress
from multiclouddb_api.process import Unforkable
from multiclouddb_cosmos.config import names_in
from multiclouddb_cosmos.credentials import RenewableCredential
from multiclouddb_cosmos.errors import BAD_REQUEST, RECREATED, code_of, recreated
from multiclouddb_cosmos.position import KeyRange
from multiclouddb_cosmos.records import (
    ABSENT,
    LSN,
    NO_KEY,
    SYSTEM,
    Doubled,
    Halved,
    normal,
    told_apart,
    value_at,
    with_halves_marked,
)
from multiclouddb_cosmos.transport import (
    ALL_VERSIONS,
    LATEST,
    NOW,
    DamagedTextError,
    MovedError,
    Transport,
    Watch,
    begin_at,
    close_client,
    end_if_damaged,
    end_if_throttled,
    feed_range_of,
    is_of_item,
    is_own,
    is_text,
    position_headers,
    ranges_in,
    uncached,
    unwrapped,
)
from multiclouddb_spi import Deadline, ProviderFault, collector_paused, unsupported
from multiclouddb_spi.time_limits import ANSWER_SECONDS

SDK: Final = Unforkable("azure-cosmos")
"""Its clients share locks, which a thread may hold that does not exist in a forked child."""
LARGEST_PAGE: Final = 1000
_SWELLING: Final = 5
"""The memory of a parsed item as a multiple of the size of its text."""
_READ_SECONDS: Final = 10.0
_LISTING_SECONDS: Final = 30.0
LATE_SECONDS: Final = 60
"""With several write regions, a change can get its LSN so many seconds after its time."""
_RACES: Final = ("mutated during iteration", "overlapping ranges")
"""What azure-cosmos says if two of its threads have disturbed each other."""
_QUORUM: Final = ("Strong", "BoundedStaleness")
"""The levels with which several replicas answer a read together, for twice the units.

https://learn.microsoft.com/azure/cosmos-db/consistency-levels#consistency-levels-and-throughput
"""
_LEVEL_SECONDS: Final = 300.0
_NO_ITEM: Final = (404, 0)
_PLAIN_ID: Final = re.compile(r"(?![ .])[\w ,;:=~+@()^${}\[\]!.-]+(?<![ .])")
"""Ids that a gateway can be asked for.

The service accepts others when an item is written, but its gateway answers a point read with 400, 401 or, as
if there were no item, 404: if they contain a slash, `#`, `%` and two digits, TAB, CR or LF, or end with a
space. See CosmosItemIdEncodingTestsBase.cs in azure-cosmos-dotnet-v3, and TestItemIdEncoding in
azure-sdk-for-go. And azure-cosmos cuts off slashes at the end of a link, so it would read another
item.
"""
_ESCAPED_LSN: Final = re.compile(rb"\\u00(?:5[fF]|6[cCeE]|73)").search
"""Finds a letter of `_lsn` that is written with a JSON escape."""
_LONG: Final = b"0" * 20, b"-" + b"0" * 19
"""The shortest whole numbers that may have more than 64 bits, with each digit as 0."""
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_INDEXED: Final = "consistent"
_SHORT: Final = 50
"""A text of so many characters has at most 100 UTF-16 units, which version 1 of the hash takes whole."""
_BY_ID: Final = "SELECT * FROM c WHERE c.id = @id"


@frozen
class Definition:
    """The properties of a container."""

    rid: str  # its resource id
    paths: tuple[tuple[str, ...], ...]  # the paths in the container's partition key, each as property names
    hierarchical: bool  # true if the partition key has several levels
    version: int = 2  # the version of the hash by which items are placed in partitions
    restored: str = ""  # tells a container that was restored in its account from the deleted one
    indexed: bool = True  # true if a query finds each item as soon as it is written
    masked: bool = False  # true if identities without a permission get masked values

    @property
    def incarnation(self) -> str:
        """Return what identifies the container, and differs from that of an earlier one with its name."""
        return f"{self.rid}+{self.restored}" if self.restored else self.rid


@frozen
class RangePage:
    """One page from the feed of a range."""

    items: list[Any]  # the items, unchanged, as the service returned them
    etag: int  # the LSN (logical sequence number) up to which the range was read
    newest: int | None
    nbytes: int  # the memory that the items take
    charge: float | None  # the request units that the service charged for the page
    requests: int  # the number of requests that were made for the page


class Calls:
    """Makes the calls to one account."""

    def __init__(
        self,
        make: Callable[[], tuple[CosmosClient, Transport, RenewableCredential | None]] | None,
        native: CosmosClient | None = None,
    ) -> None:
        self._make, self._client = make, native
        self._transport: Transport | None = None
        self._credential: RenewableCredential | None = None
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._closed = False
        self._date: str | None = None
        self._told_at: tuple[datetime, float] | None = None
        self._level: str | None = None
        self._level_asked = 0.0

    # -- The client

    def _connected(self) -> CosmosClient:
        SDK.used()
        found = self._current()
        if found is not None:
            return found
        with self._making:  # `close` does not wait for this lock, because making a client sends requests
            found = self._current()
            if found is not None:
                return found
            assert self._make is not None
            client, transport, credential = self._make()
            with self._lock:
                closed = self._closed
                if not closed:
                    self._client, self._transport, self._credential = client, transport, credential
        if closed:
            close_client(client)
            raise _closed()
        return client

    def _current(self) -> CosmosClient | None:
        with self._lock:
            if self._closed:
                raise _closed()
            return self._client

    def close(self) -> None:
        """Close the connections of the client, if the library made this client; it takes at most a second."""
        with self._lock:
            self._closed = True
            client = self._client if self._make is not None else None
            self._client = None
        if client is not None:
            close_client(client)

    def renew(self, since: float) -> bool:
        """Replace the token of the client's identity; see `SupportsRenewal`."""
        with self._lock:
            credential = self._credential
        return credential is not None and credential.renew(since)

    def container(self, address: ResourceAddress) -> ContainerProxy:
        """Return the container object of azure-cosmos, without sending a request."""
        if address.database is None or address.collection is None:
            raise ProviderFault.of(
                ErrorCategory.INVALID_REQUEST,
                "the address has no database; name it: ResourceAddress('shop', 'orders')",
            )
        return (
            self._connected().get_database_client(address.database).get_container_client(address.collection)
        )

    def now(self) -> datetime | None:
        """Return the time of the service's last answer plus the time since then."""
        told = self._told_at
        return None if told is None else told[0] + timedelta(seconds=time.monotonic() - told[1])

    def _hear(self, headers: Mapping[str, Any]) -> None:
        date = headers.get("Date")
        if date is not None and date != self._date and is_own(headers):  # a proxy has another clock
            self._date = date
            with contextlib.suppress(ValueError, TypeError):
                self._told_at = parsedate_to_datetime(date).astimezone(UTC), time.monotonic()

    @contextlib.contextmanager
    def _guarded(self, deadline: Deadline) -> Iterator[Watch | None]:
        """Run a call of azure-cosmos; if azure-cosmos cannot handle the service's error, raise this error."""
        transport = self._transport
        try:
            with unwrapped() if transport is None else transport.watching(deadline) as watch:
                yield watch
        except (TypeError, AttributeError) as error:
            # For example, azure-cosmos expects that only a query is answered with 500.
            if isinstance(error.__context__, CosmosHttpResponseError):
                raise error.__context__ from None
            raise
        except (RuntimeError, AssertionError) as error:
            if any(text in str(error) for text in _RACES):
                raise ProviderFault.of(
                    ErrorCategory.TRANSIENT_FAILURE, "two calls have disturbed each other", retryable=True
                ) from error
            raise

    def _limits(self, deadline: Deadline, seen: dict[str, Any] | None = None) -> dict[str, Any]:
        # azure-cosmos discards a complete answer that has taken longer than `timeout`.
        limits: dict[str, Any] = {
            "timeout": deadline.remaining() + ANSWER_SECONDS,
            "read_timeout": _READ_SECONDS,
        }
        if self._make is None:
            limits["raw_response_hook"] = end_if_throttled(deadline, seen)
        return limits

    # -- Containers

    def define(self, address: ResourceAddress, deadline: Deadline) -> Definition:
        """Read the container's properties."""
        # The request also makes azure-cosmos forget an earlier container with the same name.
        container = self.container(address)
        with self._guarded(deadline):
            found = container.read(
                response_hook=lambda headers, _: self._hear(headers), **self._limits(deadline)
            )
        key = found.get("partitionKey") or {}
        paths = tuple(names_in(path) for path in key.get("paths", ()))
        if not all(paths) or len({"/".join(path) for path in paths}) < len(paths):
            raise unsupported(
                f"the partition key of the container has the paths {list(key['paths'])}, which are not all "
                "understood, so that the keys of its items are not known",
                "copy the items into a container whose partition key has plain names, and report the paths",
            )
        # The service places an item by what was written, and the feed contains what the service has added.
        if own := [path[0] for path in paths if path[0] in {LSN, *SYSTEM}]:
            raise unsupported(
                f"the partition key of the container begins with {own[0]}, which the service adds to items, "
                "so that their keys are not known",
                "copy the items into a container whose partition key has another name",
            )
        masking = found.get("dataMaskingPolicy") or {}
        # A container without a version has version 1.
        return Definition(
            str(found["_rid"]),
            paths,
            key.get("kind") == "MultiHash",
            int(key.get("version") or 1),
            _restored(found.get("restoreParameters")),
            str((found.get("indexingPolicy") or {}).get("indexingMode", _INDEXED)).lower() == _INDEXED,
            bool(masking) and masking.get("isPolicyEnabled") is not False,
        )

    def addresses(self, database: str | None, deadline: Deadline) -> list[ResourceAddress]:
        """Return the containers of a database, or those of all databases in the account."""
        client = self._connected()
        names = [database]
        with self._guarded(deadline):
            if database is None:
                names = [each["id"] for each in client.list_databases(**self._limits(deadline))]
            return [
                ResourceAddress(name, each["id"])
                for name in names
                for each in client.get_database_client(str(name)).list_containers(**self._limits(deadline))
            ]

    def lateness(self, deadline: Deadline) -> int:
        """Return how many seconds after its time a change can get its LSN, by the account's write regions."""
        with self._guarded(deadline):
            account = self._connected().get_database_account(**self._limits(deadline))
        return LATE_SECONDS if len(account.WritableLocations) > 1 else 0

    def ranges(self, address: ResourceAddress) -> list[KeyRange]:
        """Request the current ranges of all partitions from the service, and return them."""
        container = self.container(address)
        with self._guarded(Deadline.after(_LISTING_SECONDS)):
            listed = list(container.read_feed_ranges(force_refresh=True))
        return [KeyRange(each["Range"]["min"], each["Range"]["max"]) for each in listed]

    def item(
        self,
        address: ResourceAddress,
        item_id: str,
        levels: list[Any],
        definition: Definition,
        deadline: Deadline,
    ) -> tuple[dict[str, Any], int | None] | None:
        """Return an item and the LSN of its last change, which a query does not return.

        Return None if the service says that there is no such item. In `levels`, the components of its
        partition key, {} stands for none.
        """
        seen: dict[str, Any] = {}

        def hook(headers: Any, _: Any) -> None:
            seen.update(headers)

        container = self.container(address)
        partition_key = levels if definition.hierarchical else _alone(levels[0])
        settings = {"response_hook": hook, "raw_request_hook": uncached, **self._limits(deadline)}
        settings["raw_response_hook"] = end_if_damaged(settings.get("raw_response_hook"))
        try:
            with self._guarded(deadline):
                settings |= self._as_account(deadline)
                searched = settings if definition.indexed else {**settings, "enable_scan_in_query": True}
                if is_plain(item_id):
                    return dict(container.read_item(item_id, partition_key, **settings)), _number(
                        seen.get("x-ms-item-lsn")
                    )
                named: list[dict[str, object]] = [{"name": "@id", "value": item_id}]
                if not _is_placed_right(levels, definition.version):
                    everywhere = container.query_items(
                        _BY_ID, parameters=named, enable_cross_partition_query=True, **searched
                    )
                    found = [each for each in everywhere if _has_levels(each, definition.paths, levels)]
                else:
                    alone = container.query_items(
                        _BY_ID, parameters=named, partition_key=partition_key, **searched
                    )
                    found = list(alone)
        except CosmosHttpResponseError as error:
            self._hear(error.headers or {})
            if code_of(error) == (BAD_REQUEST, RECREATED):
                raise recreated(address) from error
            if code_of(error) == _NO_ITEM and is_plain(item_id) and is_of_item(error):
                return None
            if error.status_code == BAD_REQUEST:
                self._level = None  # the account may have a weaker level now, and refuse the earlier one
            raise
        except DamagedTextError:
            return Halved(), None
        finally:
            self._hear(seen)
        return (dict(found[0]), None) if found else None

    def _as_account(self, deadline: Deadline) -> dict[str, Any]:
        """Return the settings that make a look-up as consistent as an account with one of these levels."""
        # The library's client relaxes its reads, because they would carry session tokens otherwise; so it has
        # to ask for the account's level. A client of the user's has its own. azure-cosmos takes the level of
        # one request only in `request_options`; it ignores its parameter `initial_headers`.
        if self._make is None:
            return {}
        level = self._level  # another thread may forget it meanwhile
        if level is None or time.monotonic() - self._level_asked >= _LEVEL_SECONDS:
            self._level_asked = time.monotonic()
            policy = self._connected().get_database_account(**self._limits(deadline)).ConsistencyPolicy
            level = self._level = str((policy or {}).get("defaultConsistencyLevel", ""))
        return {"request_options": {"consistencyLevel": level}} if level in _QUORUM else {}

    # -- Pages

    def read(
        self,
        address: ResourceAddress,
        rid: str,
        place: KeyRange,
        etag: int | None,
        limit: int,
        deadline: Deadline,
        mode: str = ALL_VERSIONS,
        start: str = NOW,
        since: int | None = None,
    ) -> RangePage:
        """Return one page of a range."""
        seen: dict[str, Any] = {}

        def hook(headers: Any, body: Any) -> None:
            # After this call, azure-cosmos replaces the etag with its own continuation.
            seen.update(headers=headers, etag=headers.get("etag"), body=body)

        pages = (
            self.container(address)
            .query_items_change_feed(
                feed_range=feed_range_of(place),
                mode=mode,
                start_time=start,
                raw_request_hook=begin_at(position_headers(etag, since), rid, recreated(address)),
                max_item_count=min(limit, LARGEST_PAGE),
                response_hook=hook,
                **self._limits(deadline, seen),
            )
            .by_page()
        )
        try:
            items, body, requests = self._page(pages, seen, deadline, mode)
        except CosmosHttpResponseError as error:
            self._hear(error.headers or {})
            if code_of(error) == (BAD_REQUEST, RECREATED):
                raise recreated(address) from error
            raise
        headers = seen["headers"]
        self._hear(headers)
        told = body.get("_rid") if body else headers.get("x-ms-content-path")
        if told not in (None, rid):
            raise recreated(address)
        if ranges_in(headers["etag"]) != [place]:
            raise MovedError
        # If an answer is sent in chunks, for example by a proxy, it does not state its length.
        nbytes = seen.get("nbytes") or int(_number(headers.get("Content-Length")) or 0) if items else 0
        newest = _number(headers.get("lsn"))
        position = _number(str(seen["etag"]).strip('"'))
        if position is None:
            raise ProviderFault.of(
                ErrorCategory.PROVIDER_ERROR,
                f"the service's position {str(seen['etag'])[:40]!r} is not an LSN; please report this",
            )
        if mode == LATEST and Doubled in set(map(type, items)):
            items = told_apart(items, etag or 0, position)
        return RangePage(items, position, newest, _SWELLING * nbytes, _charge(headers), requests)

    def _page(
        self, pages: Any, seen: dict[str, Any], deadline: Deadline, mode: str
    ) -> tuple[list[Any], Mapping[str, Any], int]:
        """Return the items of one page, the body of the answer, and the number of requests."""
        with self._guarded(deadline) as watch:
            page = next(pages, None)
        if watch is None:
            # The text tells what azure-cosmos does not: that a document has `_lsn` twice, or that it is no
            # UTF-8, which a variable of the environment may let azure-cosmos replace.
            body = seen["body"] or {}
            text = seen.get("texts", {}).get(seen["etag"])
            if text is not None and (
                not is_text(text) or (mode == LATEST and _is_doubled(text, body.get("Documents", ())))
            ):
                body = _parsed(text)
                return body["Documents"], body, 1
            return ([] if page is None else list(page)), body, 1
        # Without requests, azure-cosmos has sent the request from another thread.
        if not watch.requests:
            return ([] if page is None else list(page)), seen["body"] or {}, 1
        if watch.body is None:
            return [], {}, watch.requests
        seen["nbytes"] = len(watch.body)
        body = _parsed(watch.body)
        return body["Documents"], body, watch.requests


def is_plain(item_id: str) -> bool:
    """Return True if an item with this id is read by its id, and not searched by a query."""
    return _PLAIN_ID.fullmatch(item_id) is not None


def _alone(level: Any) -> Any:
    """Return the only component of a partition key in the form in which azure-cosmos takes it."""
    # A query takes None for no partition key, and a list for the levels of a hierarchical one.
    return NonePartitionKeyValue if level == {} else NullPartitionKeyValue if level is None else level


def _is_placed_right(levels: Sequence[Any], version: int) -> bool:
    """Return False if azure-cosmos may ask a place for the items of a partition key that has none of them.

    Some versions, such as 4.16.1, compute the place of a query (Azure/azure-sdk-for-python issue 48209). They
    take a level that is missing for null. And with version 1 of the hash, they are right only for texts that
    are neither empty nor long, for true and for false.
    """
    if {} in levels:
        return False
    return (
        version != 1
        or isinstance(levels[0], bool)
        or (isinstance(levels[0], str) and 0 < len(levels[0]) <= _SHORT)
    )


def _has_levels(item: Any, paths: Sequence[Sequence[str]], wanted: Sequence[Any]) -> bool:
    """Return whether an item has these values of the partition key; {} stands for none."""
    for path, value in zip(paths, wanted, strict=True):
        found = value_at(item, path)
        if found is ABSENT or isinstance(found, NO_KEY):
            found = {}
        if _form(found) != _form(value):
            return False
    return True


def _form(value: Any) -> tuple[Any, bool, float]:
    """Return what differs for two values of a partition key that are not the same."""
    # In Python, True is 1, and 0 is -0.0, which is another key.
    try:
        number = normal(value)
    except OverflowError:  # an int beyond all doubles
        number = value
    is_zero = isinstance(value, int | float) and value == 0
    return number, isinstance(value, bool), math.copysign(1.0, value) if is_zero else 1.0


def _restored(parameters: Any) -> str:
    """Return a digest of the restore parameters of a container; empty if it has none.

    A container that is restored in its account has the resource id of the deleted one, and its changes have
    LSNs of their own. Its restore parameters, which contain its instance id, are in its definition: "Restore
    a deleted database or container in the same account by using continuous backup" on Microsoft Learn.
    """
    if not parameters:
        return ""
    text = json.dumps(parameters, sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _is_doubled(text: bytes, documents: Sequence[Any]) -> bool:
    """Return True if some of the documents may have `_lsn` twice."""
    # A writer may spell the name with escapes, such as "\u005flsn".
    if b"\\u00" in text and _ESCAPED_LSN(text) is not None:
        return True
    names = text.count(b'"_lsn"')
    return names > 0 and names > sum([isinstance(each, dict) and LSN in each for each in documents])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = [value for name, value in pairs if name == LSN]
    if len(values) < 2:
        return dict(pairs)
    found = Doubled(pairs)
    found.own = values
    return found


def _read(text: bytes, **options: Any) -> Any:
    # What is no UTF-8 becomes half of a surrogate pair, so that only its document cannot be read.
    return json.loads(text.decode("utf-8-sig", "surrogateescape"), **options)


def _parsed(text: bytes) -> dict[str, Any]:
    # If orjson refuses the text, for example because of half a surrogate pair, Python's own parser reads it.
    # It also does so if the text may contain a whole number of more than 64 bits, which orjson would round:
    # azure-cosmos, which reads single items and the pages of an application's own client, does not.
    found: Any
    zeros = text.translate(_AS_ZEROS)
    is_plain = not any(long in zeros for long in _LONG)
    # The parser makes thousands of objects for a page, and none of these objects can be garbage yet.
    with collector_paused():
        if is_plain:
            try:
                found = orjson.loads(text)
            except orjson.JSONDecodeError:
                is_plain = False
        if not is_plain:
            try:
                found = _read(text)
            except ValueError as error:
                raise DecodeError("the page is not JSON", error=error) from None
    if not isinstance(found, dict) or not isinstance(found.get("Documents"), list):
        raise DecodeError("the page has no Documents")
    if _is_doubled(text, found["Documents"]):
        found = _read(text, object_pairs_hook=_object)
    if not is_plain:
        found["Documents"] = with_halves_marked(found["Documents"])
    body: dict[str, Any] = found
    return body


def _closed() -> ProviderFault:
    return ProviderFault.of(ErrorCategory.TRANSIENT_FAILURE, "the client is closed")


def _number(text: Any) -> int | None:
    return int(text) if text is not None and str(text).isdecimal() else None


def _charge(headers: Mapping[str, Any]) -> float | None:
    try:
        return float(headers["x-ms-request-charge"])
    except (KeyError, ValueError):
        return None
