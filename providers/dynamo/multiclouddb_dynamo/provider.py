"""The provider `dynamo`: feeds over the stream of a DynamoDB table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final
from weakref import WeakKeyDictionary

from botocore.exceptions import BotoCoreError

from multiclouddb_api import (
    Capability,
    CapabilityNote,
    CapabilitySet,
    ClientConfig,
    ErrorCategory,
    NewItemStateMode,
    OldItemStateMode,
    Support,
    invalid_request,
)
from multiclouddb_dynamo.calls import Calls, Table
from multiclouddb_dynamo.config import DynamoClients, DynamoConfig
from multiclouddb_dynamo.errors import PROVIDER_ID, classify, fault
from multiclouddb_dynamo.mapping import View
from multiclouddb_dynamo.partitions import (
    check_table,
    end_of,
    find_table,
    gone,
    headroom,
    lost,
    oldest_left,
    seeds_of_missed,
    to_partition,
)
from multiclouddb_dynamo.position import (
    Horizon,
    Place,
    compare,
    cursor_of,
    describe,
    join,
    place_of,
    without_trail,
)
from multiclouddb_dynamo.reader import DynamoReader
from multiclouddb_dynamo.resolution import Resolution
from multiclouddb_dynamo.shards import Listing, Shard, ShardMap
from multiclouddb_dynamo.stream import Stream
from multiclouddb_spi import (
    Cursor,
    Deadline,
    Fault,
    Feed,
    FeedIdentity,
    FeedSpec,
    FeedStart,
    Outcome,
    Partition,
    Position,
    Provider,
    ProviderFault,
    ProviderPlugin,
    Seed,
    Tracked,
    missed_by_parents,
)

__all__ = ["CAPABILITIES", "PLUGIN", "DynamoFeed", "DynamoPlugin", "DynamoProvider"]

_NATIVE, _UNSUPPORTED = Support.NATIVE, Support.UNSUPPORTED
_NO_WIDER: Final = "a stream is of one table; read each table with EntireCollection()"

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE,
            "enable the table's stream (StreamSpecification); new items need NEW_IMAGE or NEW_AND_OLD_IMAGES",
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(_NATIVE, "a stream keeps 24 hours"),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _UNSUPPORTED,
            "a stream starts at its beginning, at now or at a token; start at Beginning() and leave out "
            "events whose event.timestamp is earlier",
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
            _UNSUPPORTED,
            "its feed knows no partition keys; read PhysicalPartition(…) or EntireCollection() and keep the "
            "events whose event.key.partition_key is wanted",
        ),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _NATIVE, "for streams of type OLD_IMAGE or NEW_AND_OLD_IMAGES"
        ),
        Capability.CHANGE_FEED_DATABASE_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.CHANGE_FEED_CLUSTER_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.RUN_COMMAND: CapabilityNote(_UNSUPPORTED, "call boto3 for anything but the feed"),
    }
)
"""What a table can do whose stream is enabled."""


class DynamoProvider(Provider):
    """One region.

    Args:
        clients: boto3's clients.
        ours: True when we made them.
        vendor_retried: True when botocore retries by itself.
    """

    provider_id: ClassVar[str] = PROVIDER_ID

    def __init__(self, clients: DynamoClients, *, ours: bool, vendor_retried: bool) -> None:
        self._calls = Calls(clients, ours=ours, vendor_retried=vendor_retried)
        self._vendor_retried = vendor_retried

    def capabilities(self) -> CapabilitySet:
        """What a table can do whose stream is enabled."""
        return CAPABILITIES

    def open_feed(self, spec: FeedSpec, deadline: Deadline) -> DynamoFeed:
        """Find the table and its stream, and check what the stream's records hold."""
        table, arn = find_table(self._calls, spec.address)
        check_table(table, spec)
        return DynamoFeed(self._calls, spec, table, arn)

    def classify(self, error: Exception) -> Fault:
        """What an exception of boto3 means."""
        return classify(error, vendor_retried=self._vendor_retried)

    def close(self) -> None:
        """Free the connections of clients that we made; calls in flight end by their read timeout, 10 s."""
        self._calls.close()


class DynamoFeed(Feed):
    """The stream of one table.

    Args:
        calls: Makes the calls.
        spec: What was asked for.
        table: The table.
        arn: Its stream, which tells it from one that was made before or after.
    """

    def __init__(self, calls: Calls, spec: FeedSpec, table: Table, arn: str) -> None:
        self.spec = spec
        self.identity = FeedIdentity(PROVIDER_ID, spec.address, arn)
        self._calls, self._table = calls, table
        self._shards = ShardMap(calls, arn)
        # What tries that failed have learned: it is of one call, and goes with its deadline.
        self._resolutions: WeakKeyDictionary[Deadline, Resolution] = WeakKeyDictionary()
        self._listings: WeakKeyDictionary[Deadline, Listing] = WeakKeyDictionary()
        self._audits: list[Listing] = []
        self._stream = Stream(calls, arn, self._shards, lambda shard: gone(calls, spec.address, arn, shard))

    def clock(self, deadline: Deadline) -> datetime | None:
        """The `Date` of the service's last answer, carried on; None where it sends none."""
        return self._calls.now()

    def start(self, position: FeedStart, partition_id: str | None, deadline: Deadline) -> list[Seed]:
        """List the shards, and for `Now` take an iterator at the end of each open one.

        Another try of the same call, which has the same deadline, asks only for what is missing.
        """
        table, arn = find_table(self._calls, self.spec.address)
        if arn != self._stream.arn:
            raise fault(
                ErrorCategory.NOT_FOUND,
                f"the stream of table {self.spec.address.collection!r} is another by now",
            )
        if not table.enabled:
            raise fault(
                ErrorCategory.INVALID_REQUEST,
                f"the stream of table {self.spec.address.collection!r} is disabled "
                "(StreamSpecification.StreamEnabled); enable it, or go on from a token to read what it holds",
            )
        resolution = self._resolutions.setdefault(deadline, Resolution(self._stream))
        seeds = resolution.seeds(position, partition_id, deadline)
        self._resolutions.pop(deadline, None)
        return seeds

    def partitions(self, deadline: Deadline) -> list[Partition]:
        """Every shard that the service lists; it lists closed ones for 24 hours and sometimes longer."""
        listing = self._listings.setdefault(deadline, Listing())
        listed = self._shards.read(deadline, listing).shards
        self._listings.pop(deadline, None)
        return [to_partition(shard) for shard in listed.values()]

    def open(self, partition_id: str, cursor: Cursor, until: Cursor | None = None) -> DynamoReader:
        """A reader of one shard."""
        spec = self.spec
        view = View(
            spec.address,
            self.public_id(partition_id),
            partition_id,
            self._table.key_names,
            with_new=spec.new_item_state_mode is not NewItemStateMode.OMIT,
            with_old=spec.old_item_state_mode is not OldItemStateMode.OMIT,
            native=spec.include_native,
        )
        bound = place_of(until) if until is not None else None
        return DynamoReader(self._stream, view, place_of(cursor), bound)

    def discover(self, awaiting: Mapping[str, Cursor], deadline: Deadline) -> dict[str, Outcome]:
        """The children of drained shards, as far as the stream may be asked now.

        A shard that was asked for a moment ago may be left out: all these looks together cost a stream less
        than one call in two seconds.
        """
        return {
            name: self._end_of(name, children, place_of(awaiting[name]))
            for name, children in self._shards.discover(awaiting, deadline).items()
        }

    def _end_of(self, name: str, children: tuple[Shard, ...], place: Place) -> Outcome:
        listed = self._shards.listed()
        if not children and name not in listed and self._shards.is_gone(name):
            return lost(name, listed)
        return end_of(children, place, settled=self._shards.has_settled())

    def uncovered(
        self, tracked: Mapping[str, Tracked], since: datetime | None, deadline: Deadline
    ) -> list[Seed] | None:
        """By parents, from a new listing; one that a deadline has cut off goes on with the next audit."""
        try:
            listing = self._audits.pop()
        except IndexError:
            listing = Listing()
        try:
            self._shards.read(deadline, listing)
            shards = listing.shards
            missed = missed_by_parents(tracked, map(to_partition, shards.values()), self._shards.is_gone)
            if missed is None:
                return None
            bound = None if since is None else int(since.timestamp())
            seeds = seeds_of_missed(missed, shards, bound, self._shards.is_trimmed)
        except Exception:
            self._audits.append(listing)
            raise
        return seeds

    def headroom(self, cursor: Cursor, now: datetime) -> float | None:
        """24 hours from the time that nothing behind the position is older than."""
        return headroom(place_of(cursor), now)

    def join(self, child_id: str, cursors: Sequence[Cursor]) -> Cursor:
        """At the child's start; a shard has one parent at most."""
        return cursor_of(join(map(place_of, cursors)))

    def compare(self, a: Cursor, b: Cursor) -> int | None:
        """By sequence number, as integers."""
        return compare(place_of(a), place_of(b))

    def without_hints(self, cursor: Cursor) -> Cursor:
        """Without the iterator of an empty answer."""
        return without_trail(cursor)

    def oldest(self, partition_ids: Sequence[str], deadline: Deadline) -> list[Seed]:
        """What is left of these shards, or of what came from them."""
        shards, now = self._shards.read(deadline).shards, self._stream.seconds()
        # A listing may be incomplete: what it lacks is asked for.
        hidden = {name for name in partition_ids if name not in shards and not self._shards.is_gone(name)}
        return [Seed(name, (), cursor_of(Horizon(now))) for name in sorted(hidden)] + oldest_left(
            shards,
            set(partition_ids) - hidden,
            now,
            # Where the service tells the time, reading tells it by the age of the seed.
            lambda shard: now is not None or shard.last is None or self._shards.can_be_read(shard),
        )

    def describe(self, cursor: Cursor) -> Position:
        """`sequence 4711`, and a time that nothing behind it is older than."""
        return describe(place_of(cursor))


class DynamoPlugin(ProviderPlugin):
    """What the entry point names."""

    provider_id: ClassVar[str] = PROVIDER_ID

    def capabilities(self) -> CapabilitySet:
        """What a table can do whose stream is enabled."""
        return CAPABILITIES

    def connect(self, config: ClientConfig, native_client: object | None) -> DynamoProvider:
        """Make boto3's clients; nothing is called yet.

        Args:
            config: `connection` has a `url`, `dynamo://REGION?endpoint_url=…`, or `region` and
                `endpoint_url`; and maybe the application's own boto3 `session` and botocore `config`.
            native_client: `DynamoClients`, used as they are.
        """
        checked = DynamoConfig.from_client(config)
        if native_client is None:
            try:
                clients = checked.clients(config.max_concurrency)
            except (BotoCoreError, ValueError) as error:
                raise ProviderFault(classify(error)) from error
            return DynamoProvider(clients, ours=True, vendor_retried=checked.own_retries)
        if not isinstance(native_client, DynamoClients):
            raise invalid_request(
                "native_client",
                f"is a {type(native_client).__name__}",
                "pass DynamoClients(dynamodb=…, streams=…) of multiclouddb_dynamo",
            )
        return DynamoProvider(native_client, ours=False, vendor_retried=True)


PLUGIN: Final = DynamoPlugin()
