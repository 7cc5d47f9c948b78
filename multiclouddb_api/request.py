"""Defines the request that describes one read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, get_args

import attrs
from attrs import frozen

from multiclouddb_api.capability import Capability, CapabilitySet
from multiclouddb_api.codec import encode_json
from multiclouddb_api.errors import invalid_request, type_name
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.progress import Progress
from multiclouddb_api.redaction import shorten
from multiclouddb_api.snapshot import Resnapshot, Snapshot
from multiclouddb_api.validators import at_least, check_type, has_methods, is_a, not_blank, to_utc, utf8


def _is_utf8(instance: object, attribute: attrs.Attribute[Any], value: str | None) -> None:
    utf8(f"{type(instance).__name__}.{attribute.name}", value or "")


_OR_NONE = "give its name, or None if the scope is wider"


def _is_not_empty(instance: object, attribute: attrs.Attribute[Any], value: str | None) -> None:
    # MongoDB has collections whose names are only spaces or control characters.
    if value == "":
        raise invalid_request(f"{type(instance).__name__}.{attribute.name}", "is empty", _OR_NONE)


_NAME = [is_a(str, type(None)), not_blank(_OR_NONE), _is_utf8]
_COLLECTION = [is_a(str, type(None)), _is_not_empty, _is_utf8]


@frozen(init=False)
class ResourceAddress:
    """A collection, table or container, and the database that contains it.

    You rarely need this class: every function that takes an address also takes its text, such as
    `"shop/orders"` or `"orders"` (see `parse`). Only the address of a whole database or cluster has no text.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a name is empty or not text, or if one name alone is given by
            position, because it is not clear which of the two it is.

    Examples:
        >>> ResourceAddress("shop", "orders") == ResourceAddress.parse("shop/orders")
        True
        >>> ResourceAddress(database="shop")  # with EntireDatabase()
        ResourceAddress(database='shop', collection=None)

    Portability:
        DynamoDB has no databases, so `database` is None there; on the embedded store it is `"main"` by
        default. `collection` is the name of a table (DynamoDB, Spanner), a container (Cosmos DB) or a
        collection (MongoDB, embedded store). See warning 21 in docs/configuration.md.
    """

    database: str | None = attrs.field(default=None, validator=_NAME)
    """Name of the database, or None if the provider has no databases."""
    collection: str | None = attrs.field(default=None, validator=_COLLECTION)
    """Name of the collection, or None with `EntireDatabase()` and `EntireCluster()`."""

    def __init__(
        self, *names: str | None, database: str | None = None, collection: str | None = None
    ) -> None:
        if len(names) == 2 and database is None and collection is None:
            database, collection = names
        elif names:
            raise invalid_request(
                "ResourceAddress",
                f"was given {len(names)} of its 2 names by position",
                "write ResourceAddress(database, collection), ResourceAddress(collection=…), "
                'ResourceAddress(database=…), or ResourceAddress.parse("database/collection")',
            )
        # attrs generates this method.
        self.__attrs_init__(database, collection)

    @classmethod
    def parse(cls, address: str) -> ResourceAddress:
        """Return the address that a text stands for, cut at the first `/`; the command line does the same.

        Args:
            address: `"database/collection"`, or the collection alone where there are no databases (DynamoDB)
                or where there is a default (the embedded store, and MongoDB with a database in its URL).

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the text names no collection.
        """
        check_type("address", address, str)
        database, slash, collection = address.partition("/")
        if not slash:
            database, collection = "", address
        if not collection.strip():
            raise invalid_request(
                "address",
                f"{address!r} names no collection",
                'write "database/collection", or ResourceAddress(database=…) for a whole database',
            )
        return cls(database or None, collection)

    def __str__(self) -> str:
        return "/".join(name for name in (self.database, self.collection) if name is not None)


def is_same_collection(one: ResourceAddress, other: ResourceAddress) -> bool:
    """Return whether two addresses are of one collection; a database that has a default may be left out."""
    databases = {one.database, other.database} - {None}
    return one.collection == other.collection and len(databases) < 2


def to_address(value: ResourceAddress | str) -> ResourceAddress:
    """Return the address that a text names; return any other value unchanged."""
    return ResourceAddress.parse(value) if isinstance(value, str) else value


@frozen
class EntireCollection:
    """The whole collection; the token follows all partitions through their splits and merges.

    Events of one partition come in the service's commit order, also across its splits and merges. There is no
    order between two partitions.
    """


@frozen
class PhysicalPartition:
    """One physical partition: a DynamoDB shard, a Cosmos DB feed range or a Spanner partition token.

    When the partition ends, its last page has `partition_retired=True` and a token for each of its children.
    With `with_descendants`, `partition_retired` stays False, because the read goes on in all partitions that
    replace the ended one, and the token tracks them.

    Where partitions merge, prefer one reader of all of them, such as `EntireCollection`: only one reader
    keeps the order across the merge and reads each event once. With a reader for each parent, both read the
    common child, and neither knows how far the other is.

    Portability:
        An id of another provider or resource raises `INVALID_REQUEST`. MongoDB has one partition, which never
        ends, so `with_descendants` has no effect there. See warnings 6, 7, 11 and 22 in
        docs/configuration.md.
    """

    partition_id: str = attrs.field(
        validator=[is_a(str), not_blank("take one from client.list_physical_partitions(address)")]
    )
    """An id from `list_physical_partitions`, `plan_partitions`, an event or a `ChildPartition` of the same
    provider and resource."""
    with_descendants: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))
    """True to go on in the partitions that replace this one after a split or merge; False by default. A token
    that was made with the other value is refused."""


@frozen
class LogicalPartition:
    """All documents with one partition key value.

    Portability:
        Cheap on Cosmos DB and the embedded store. MongoDB's server searches its whole log for every such
        feed. DynamoDB and Spanner raise `UNSUPPORTED_CAPABILITY`: read the collection, and filter in the
        application. Check `Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE`. See warning 6 in
        docs/configuration.md.
    """

    key: MulticloudDbKey = attrs.field(repr=shorten, validator=is_a(MulticloudDbKey))
    """A key whose `partition_key` components are compared; its other components are ignored."""


@frozen
class EntireDatabase:
    """Every collection of `address.database`; each event contains its own address.

    Portability:
        MongoDB and Spanner only. On Spanner, these are the tables that one change stream watches. The feed
        of a dropped database ends. But MongoDB's databases have no ids, so a token of the old one is accepted
        by a new database with the same name. Check `Capability.CHANGE_FEED_DATABASE_SCOPE`. See warnings 13
        and 20 in docs/configuration.md.
    """


@frozen
class EntireCluster:
    """Every database of the deployment; each event contains its own address.

    Portability:
        MongoDB only. A token of another deployment is refused if the user may read the id of the deployment
        (role `clusterMonitor`). If not, the token is accepted with a warning in the log. Check
        `Capability.CHANGE_FEED_CLUSTER_SCOPE`. See warnings 13 and 20 in docs/configuration.md.
    """


FeedScope: TypeAlias = (
    EntireCollection | PhysicalPartition | LogicalPartition | EntireDatabase | EntireCluster
)
"""The union of all scopes, which are frozen and comparable; use `match` on the class."""


@frozen
class Beginning:
    """Starts at the oldest change that the service still keeps.

    Rows that have not changed since then are not returned; for those, start at `Snapshot()`.

    Portability:
        DynamoDB keeps changes for 24 hours, Spanner for the stream's retention (one day by default), MongoDB
        as long as they are in the oplog, and the embedded store until `trim`. On Cosmos DB the read raises
        `UNSUPPORTED_CAPABILITY` unless you opt into its backfill, because a feed of all versions and deletes
        cannot start in the past. Check `Capability.CHANGE_FEED_BEGINNING`. See warnings 3, 8 and 10 in
        docs/configuration.md.
    """


@frozen
class Now:
    """Starts at the first call; every change that is committed after that call is returned.

    `with follow(…)` and `with client.iterate_changes(…)` make the first call when the block is entered.

    The first page is usually empty, but its token fixes the start: store it, and a later read from it returns
    all changes since the first call, also after a restart. With `OperationOptions(start_only=True)` it is
    always empty, so a program that dies in its first events does not begin later at its next start.

    Portability:
        On DynamoDB, a reader that stops for more than 15 minutes before its first event may also get changes
        from the two minutes before its start. See warning 19 in docs/configuration.md.
    """


def _utc(value: datetime) -> datetime:
    return to_utc("AtTime.utc", value)


@frozen
class AtTime:
    """Starts at the first change at or after a given time of the service's clock.

    It never starts later, but it may start earlier, by at most the precision in the note of
    `Capability.CHANGE_FEED_POINT_IN_TIME`.

    Raises:
        MulticloudDbError: When the position is built, `INVALID_REQUEST` for a datetime without a time zone.
            At the first read, `INVALID_REQUEST` if the time is more than 60 seconds ahead of the service's
            clock, and `CHECKPOINT_EXPIRED` if it is older than the service's retention.

    Portability:
        On MongoDB, a change whose write took the server more than ten seconds may be left out.
        DynamoDB needs botocore 1.43.114 or newer; else start from a stored token, or at `Beginning()`.
        Cosmos DB needs the opt-in to its backfill. Cosmos DB, DynamoDB and MongoDB start at a whole second.
        Check `Capability.CHANGE_FEED_POINT_IN_TIME`. See warnings 2, 8 and 9 in docs/configuration.md.
    """

    utc: datetime = attrs.field(converter=_utc)
    """An aware datetime with any offset; it is stored in UTC."""


def _without_line_break(token: str) -> str:
    value: object = token
    return value.rstrip("\r\n") if isinstance(value, str) else token


@frozen
class FromContinuationToken:
    """Continues after everything that was returned up to the position of a token.

    Portability:
        A token is valid only for the provider, resource and scope for which it was made, and only as long as
        the service keeps the changes after it (24 hours on DynamoDB). The tokens of a resource that was
        deleted and created again under its name are refused, except by MongoDB's feeds of whole databases.
        See warnings 3, 7, 10 and 20 in docs/configuration.md.
    """

    token: str = attrs.field(
        converter=_without_line_break,
        repr=shorten,
        validator=[is_a(str), not_blank("pass a page's continuation_token")],
    )
    """The `continuation_token` of a page, the token of a child partition, or the `skip_token` of an error. It
    is opaque text of up to several kilobytes, so a `varchar(255)` or an HTTP header is too small for it. A
    line break at its end is ignored.
    """


StartPosition: TypeAlias = Beginning | Now | AtTime | Snapshot | FromContinuationToken
"""The union of all start positions, which are frozen and comparable; use `match` on the class."""


@frozen
class OperationOptions:
    """The limits of one call."""

    timeout_seconds: float = attrs.field(
        default=30.0,
        validator=[is_a(int, float), at_least(0.001, "give the time limit of the whole call in seconds")],
    )
    """The time limit of the whole call with its retries, in seconds; greater than 0, and 30 by default. When
    it has passed, a call that has made progress returns its page, and any other raises
    `TRANSIENT_FAILURE`."""
    wait_seconds: float = attrs.field(
        default=0.0, validator=[is_a(int, float), at_least(0, "use 0 to get an answer at once")]
    )
    """How long to wait for a first event before an empty page is returned (long poll), in seconds; 0, the
    default, means no wait. `timeout_seconds` limits it too.
    """
    ask_all: bool = attrs.field(default=True, validator=is_a(bool))
    """Whether a call asks every partition, also those that are not worth asking yet; True by default. False
    is cheaper for a loop that runs for ever, such as a `ChangeFeedIterator` without `until_idle`: if the feed
    has more partitions than `ClientConfig.max_concurrency`, a call leaves out those that are not worth asking
    yet. Its page is then not idle, and `ChangeFeedPage.poll_after_seconds` is the time until the next call is
    worth its cost.

    Portability:
        On Cosmos DB, DynamoDB and Spanner, an idle partition is worth asking again after about a second, or
        later if the client reads hundreds of partitions. The embedded store and MongoDB always ask all.
    """
    start_only: bool = attrs.field(default=False, kw_only=True, validator=is_a(bool))
    """True for a call with `Now()` that reads nothing and fixes the start: its page is empty, not idle, and
    has the token to read from. False by default; other starts ignore it. A `ChangeFeedIterator` begins with
    such a call, and saves its token before it delivers anything."""
    progress: Progress | None = attrs.field(
        default=None, kw_only=True, eq=False, repr=False,
        validator=has_methods(
            "answered", "waits", "must_stop", advice="pass an object with the methods of Progress, or None"
        ),
    )  # fmt: skip
    """What the call reports to while it waits, and what can end it: see `multiclouddb_api.progress.Progress`.
    None by default; a `ChangeFeedIterator` passes its own. A call that is ended raises `TRANSIENT_FAILURE`,
    and nothing is lost.
    """


@frozen
class ProviderOptions:
    """The base class of a provider's options, of which each provider has a frozen subclass.

    A field with `positions=True` in its metadata changes what a position means, so a token that was made with
    another value of this field is refused.
    """

    def position_digest(self) -> str:
        """Return a digest of the options that change positions; empty if all have their default values."""
        values: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in attrs.fields(type(self))
            if field.metadata.get("positions") and getattr(self, field.name) != field.default
        }
        if not values:
            return ""
        return hashlib.sha256(encode_json(values)).hexdigest()[:12]

    def describe_digest(self, digest: str) -> str:
        """Return what a digest stands for, as text for the error that refuses a token.

        Args:
            digest: A result of `position_digest` of options of this class.
        """
        check_type("digest", digest, str)
        return "other provider options" if digest != self.position_digest() else "these provider options"

    def narrow(self, capabilities: CapabilitySet) -> CapabilitySet:
        """Return the capabilities of a request with these options; by default, no option changes them.

        Args:
            capabilities: The capabilities of a request without options.
        """
        check_type("capabilities", capabilities, CapabilitySet)
        return capabilities

    def opts_into(self, capability: Capability) -> bool:
        """Return whether the caller has opted into this `EMULATED` capability; False by default.

        Args:
            capability: The capability.
        """
        check_type("capability", capability, Capability)
        return False


class NewItemStateMode(StrEnum):
    """Whether events include the document as it is after the change.

    Portability:
        `REQUIRE` raises `UNSUPPORTED_CAPABILITY` unless DynamoDB's stream has new images, Spanner's change
        stream has full rows, or MongoDB's collection keeps pre- and post-images. MongoDB without images looks
        up an updated document when the change is read, so with `INCLUDE_IF_AVAILABLE` it may be newer than
        the change. See warnings 4, 5 and 15 in docs/configuration.md.
    """

    OMIT = "omit"
    """Never include the document, which is cheaper where the service can leave it out."""
    INCLUDE_IF_AVAILABLE = "include_if_available"
    """Include the full document if the service has it, else None; a partial document is never returned."""
    REQUIRE = "require"
    """Include the full document, or raise `UNSUPPORTED_CAPABILITY` before the first event."""


class OldItemStateMode(StrEnum):
    """Whether events include the document as it was before the change.

    Portability:
        Every value except `OMIT` needs `Capability.CHANGE_FEED_OLD_ITEM_STATE`, which Cosmos DB lacks and for
        which the other services need a setting. With Cosmos DB's option `delete_marker`, a `DELETE` has the
        item's last state in every mode. See warning 12 in docs/configuration.md.
    """

    OMIT = "omit"
    """Never include the old document."""
    INCLUDE_IF_AVAILABLE = "include_if_available"
    """Include the full old document if the service has it, else None; a partial one is never returned."""
    REQUIRE = "require"
    """Include the full old document, or raise `UNSUPPORTED_CAPABILITY` before the first event."""


@frozen
class Fail:
    """If the position is older than the retention, raise `CHECKPOINT_EXPIRED`; the default."""


@frozen
class SkipToOldest:
    """If the position is older than the retention, report a `Gap` and continue at the oldest change.

    Portability:
        Works on every database, but how soon a position becomes too old depends on the service. See warnings
        3 and 10 in docs/configuration.md.
    """


OnExpired: TypeAlias = Fail | SkipToOldest | Resnapshot
"""What to do if the service no longer keeps the changes that follow a position."""


def _check_case(field: str, value: object, union: Any, advice: Callable[[Any], str]) -> None:
    """Check that the value is an instance of a class of the union; `advice` says what to write instead."""
    kinds = get_args(union)
    if isinstance(value, kinds):
        return
    if isinstance(value, type) and issubclass(value, kinds):
        check_type(field, value, *kinds)
    raise invalid_request(field, f"cannot be of type {type_name(value)}", advice(value))


def _is_case(union: Any, advice: Callable[[Any], str]) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        _check_case(f"{type(instance).__name__}.{attribute.name}", value, union, advice)

    return check


def check_start(field: str, value: object) -> None:
    """Refuse a value that is not a start position, and say what to write instead."""
    _check_case(field, value, StartPosition, _start_advice)


def _start_advice(value: object) -> str:
    for kind in (Beginning, Now, Snapshot):
        if isinstance(value, str) and value.casefold() == kind.__name__.casefold():
            return f"write {kind.__name__}()"
    if isinstance(value, datetime):
        return "write AtTime(datetime)"
    if isinstance(value, str) or hasattr(value, "continuation_token"):
        return "write request.after(token) or FromContinuationToken(token)"
    return "write Beginning(), Now(), AtTime(…), Snapshot() or FromContinuationToken(token)"


def _scope_advice(value: object) -> str:
    whole = "the address names the collection, so leave the scope out"
    return f"{whole}; for a part of it, write PhysicalPartition(partition_id) or LogicalPartition(key)"


def _expiry_advice(value: object) -> str:
    if isinstance(value, str) and value.casefold().startswith("skip"):
        return "write SkipToOldest()"
    return "write Fail(), SkipToOldest() or Resnapshot()"


class HasToken(Protocol):
    """A page, or anything else from which a read can continue."""

    @property
    def continuation_token(self) -> str:
        """The position to resume from."""
        ...


@frozen
class ChangeFeedRequest:
    """One read of a change feed: what to read, from where, and in what form.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` when the request is built; the message names the field.
    """

    address: ResourceAddress = attrs.field(converter=to_address, validator=is_a(ResourceAddress))
    """The address of the collection, table or container, or its text: `"shop/orders"`."""
    start_position: StartPosition = attrs.field(validator=_is_case(StartPosition, _start_advice))
    """Where to start; `after` makes the request that resumes."""
    scope: FeedScope = attrs.field(factory=EntireCollection, validator=_is_case(FeedScope, _scope_advice))
    """The part of the database or collection to read; the entire collection by default."""
    new_item_state_mode: NewItemStateMode = attrs.field(
        default=NewItemStateMode.INCLUDE_IF_AVAILABLE, validator=is_a(NewItemStateMode)
    )
    """Whether events include the new document."""
    old_item_state_mode: OldItemStateMode = attrs.field(
        default=OldItemStateMode.OMIT, validator=is_a(OldItemStateMode)
    )
    """Whether events include the old document; every value except `OMIT` needs a capability."""
    max_page_size: int = attrs.field(
        default=0, validator=[is_a(int), at_least(0, "use 0 for the provider's own page size")]
    )
    """The upper limit of `len(page.events)`; 0 means the provider's own page size.

    With a limit above that size, a page takes several answers of the service while many changes are waiting,
    for up to half a second. So a sink that commits each page needs few commits with a high limit.
    """
    max_page_bytes: int = attrs.field(
        default=0, validator=[is_a(int), at_least(0, "use 0 for a quarter of max_buffered_bytes")]
    )
    """About how many bytes of records a page may have; 0, the default, means a quarter of
    `ClientConfig.max_buffered_bytes`.

    The bytes are those that the service has sent (each record of an answer has the same share of them); in
    Python, an event takes more memory. A page has at least one event, however large it is. A token can be
    resumed with another limit."""
    on_expired: OnExpired = attrs.field(factory=Fail, validator=_is_case(OnExpired, _expiry_advice))
    """What to do if the position is older than the retention; `Fail()` by default."""
    include_native: bool = attrs.field(default=False, validator=is_a(bool))
    """True to receive the vendor's own record in `event.native`."""
    provider_options: ProviderOptions | None = attrs.field(
        default=None, validator=is_a(ProviderOptions, type(None))
    )
    """The options of the client's provider, or None; those of another provider raise `INVALID_REQUEST`."""

    def after(self, position: HasToken | str) -> ChangeFeedRequest:
        """Return the same request with another start: after a page or a token.

        Args:
            position: A page, or a continuation token.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the value is neither a page nor a token.

        Examples:
            >>> page = client.read_changes(request)
            >>> page = client.read_changes(request.after(page))
        """
        token = getattr(position, "continuation_token", position)
        if isinstance(position, type) or not isinstance(token, str):
            raise invalid_request(
                "position",
                f"cannot be of type {type_name(position)}",
                "pass a page or its continuation_token",
            )
        return attrs.evolve(self, start_position=FromContinuationToken(token))
