"""Which shards a stream has and which follow which; what the table has to be provisioned with."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs
from botocore.exceptions import ClientError, ParamValidationError

from multiclouddb_api import (
    ErrorCategory,
    FeedEnded,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_dynamo.calls import Calls, Table
from multiclouddb_dynamo.errors import GONE, REJECTED, code_of, expired, fault
from multiclouddb_dynamo.position import After, Horizon, Place, Start, cursor_of, seconds_at
from multiclouddb_spi import (
    Awaiting,
    Child,
    Deadline,
    Drained,
    Ended,
    FeedSpec,
    Outcome,
    Partition,
    PartitionState,
    ProviderFault,
    Seed,
    unsupported,
)

__all__ = [
    "Shard",
    "ShardMap",
    "check_table",
    "end_of",
    "find_table",
    "gone",
    "oldest_left",
    "seed_at_end",
    "seeds_at_oldest",
    "to_partition",
]

_WITH_NEW: Final = frozenset({"NEW_IMAGE", "NEW_AND_OLD_IMAGES"})
_WITH_OLD: Final = frozenset({"OLD_IMAGE", "NEW_AND_OLD_IMAGES"})
_ENABLE: Final = (
    "enable it: aws dynamodb update-table --table-name {table} "
    "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES"
)
_STALE_GROWTH: Final = 2


@attrs.frozen
class Shard:
    """One shard as the service lists it.

    Attributes:
        shard_id: Its id.
        parent: The shard that it came from, listed or not, or None.
        first: The sequence number that it begins with.
        last: The one that it ended with; None while it is open.
    """

    shard_id: str
    parent: str | None
    first: str
    last: str | None


def _shard(listed: Mapping[str, Any]) -> Shard:
    numbers = listed["SequenceNumberRange"]
    return Shard(
        listed["ShardId"],
        listed.get("ParentShardId"),
        numbers["StartingSequenceNumber"],
        numbers.get("EndingSequenceNumber"),
    )


class ShardMap:
    """The shards of one stream: listed in full once, then by what is asked for; for several threads.

    Args:
        calls: Makes the calls.
        arn: The stream.
    """

    def __init__(self, calls: Calls, arn: str) -> None:
        self._calls, self._arn = calls, arn
        self._lock = threading.Lock()
        self._shards: dict[str, Shard] = {}
        self._children: dict[str, tuple[Shard, ...]] = {}
        self._pages = self._listed = 0
        self._filters = True
        self._enabled = True

    def read(self, deadline: Deadline) -> dict[str, Shard]:
        """Every shard that the service lists, asked now; a parent may come on a later page than its child."""
        found: dict[str, Shard] = {}
        behind, pages = None, 0
        while True:
            page = self._calls.describe_stream(self._arn, deadline, behind=behind)
            pages += 1
            found |= {shard.shard_id: shard for shard in map(_shard, page["Shards"])}
            behind = page.get("LastEvaluatedShardId")
            if behind is None:
                break
        with self._lock:
            self._enabled = page["StreamStatus"] in ("ENABLED", "ENABLING")
            self._shards, self._pages, self._listed = found, pages, len(found)
            self._children = _by_parent(found.values())
        return dict(found)

    def enabled(self) -> bool:
        """Whether the stream takes records, as of the last look."""
        return self._enabled

    def find(self, shard_id: str) -> Shard | None:
        """A shard, from memory."""
        with self._lock:
            return self._shards.get(shard_id)

    def children(self, shard_id: str) -> tuple[Shard, ...]:
        """The children of a drained shard, from memory.

        Empty unless they were seen together with their parent's end: while a shard is open, half of a split
        may be listed.
        """
        with self._lock:
            parent = self._shards.get(shard_id)
            if parent is None or parent.last is None:
                return ()
            return self._children.get(shard_id, ())

    def discover(self, shard_ids: Collection[str], deadline: Deadline) -> dict[str, tuple[Shard, ...]]:
        """The children of drained shards, asked now.

        One call a shard, or the whole list where that is fewer calls or the list is old.
        """
        with self._lock:
            stale = len(self._shards) > _STALE_GROWTH * max(self._listed, 100)
            few = self._filters and len(shard_ids) <= self._pages and not stale
        if not few or not self._ask(shard_ids, deadline):
            self.read(deadline)
        with self._lock:
            return {name: self._children.get(name, ()) for name in shard_ids}

    def _ask(self, shard_ids: Iterable[str], deadline: Deadline) -> bool:
        """Ask for the children of each; False when the service does not know how."""
        for name in shard_ids:
            behind = None
            while True:
                try:
                    page = self._calls.describe_stream(self._arn, deadline, behind=behind, parent=name)
                except (ClientError, ParamValidationError) as error:
                    if code_of(error) not in REJECTED:
                        raise
                    self._filters = False
                    return False
                self._add(
                    map(_shard, page["Shards"]), enabled=page["StreamStatus"] in ("ENABLED", "ENABLING")
                )
                behind = page.get("LastEvaluatedShardId")
                if behind is None:
                    break
        return True

    def _add(self, shards: Iterable[Shard], *, enabled: bool) -> None:
        with self._lock:
            self._enabled = enabled
            added = {shard.shard_id: shard for shard in shards}
            self._shards |= added
            for parent in {shard.parent for shard in added.values() if shard.parent is not None}:
                known = {shard.shard_id: shard for shard in self._children.get(parent, ())}
                known |= {name: shard for name, shard in added.items() if shard.parent == parent}
                self._children[parent] = tuple(known.values())


def _by_parent(shards: Iterable[Shard]) -> dict[str, tuple[Shard, ...]]:
    found: defaultdict[str, list[Shard]] = defaultdict(list)
    for shard in shards:
        if shard.parent is not None:
            found[shard.parent].append(shard)
    return {parent: tuple(children) for parent, children in found.items()}


def end_of(children: Iterable[Shard], place: Place, *, enabled: bool = True) -> Outcome:
    """How a drained shard goes on: with its children, later, or not at all.

    Args:
        children: Its children as far as they are known.
        place: Where reading has ended in it.
        enabled: False when the stream takes no more records: what is not there by then never comes.
    """
    # A parent without a record at `Beginning` says nothing about the age of its children's.
    start = cursor_of(place if isinstance(place, Horizon) else Start(seconds_at(place)))
    found = tuple(
        Child(shard.shard_id, (shard.parent,), start) for shard in children if shard.parent is not None
    )
    if found:
        return Drained(found)
    if enabled:
        return Awaiting()
    return Ended(FeedEnded("the stream was disabled or its table deleted; all that it held has been read"))


def seeds_at_oldest(shards: Mapping[str, Shard], since: int) -> list[Seed]:
    """A start at the oldest record of every shard, parents first."""
    return [
        Seed(
            shard.shard_id,
            (shard.parent,) if shard.parent in shards and shard.parent is not None else (),
            cursor_of(Horizon(since)),
        )
        for shard in shards.values()
    ]


def oldest_left(shards: Mapping[str, Shard], shard_ids: Iterable[str], since: int) -> list[Seed]:
    """Where shards can be read on whose positions have expired.

    Nothing tells what came of a shard that is not listed any more, for its children may be gone as well:
    every shard whose parent is not listed may be a descendant. Some are of other branches; that repeats
    events, where leaving them out would lose some.
    """
    found = set(shard_ids)
    if not found <= shards.keys():
        found.update(
            shard.shard_id
            for shard in shards.values()
            if shard.parent is not None and shard.parent not in shards
        )
    oldest = {seed.partition_id: seed for seed in seeds_at_oldest(shards, since)}
    return [oldest[name] for name in shards if name in found]


def seed_at_end(shard: Shard) -> Seed:
    """Behind everything in a shard that has ended."""
    assert shard.last is not None
    return Seed(shard.shard_id, (), cursor_of(After(shard.last, None)))


def to_partition(shard: Shard) -> Partition:
    """A shard as the contract lists it."""
    parents = (shard.parent,) if shard.parent is not None else ()
    state = PartitionState.OPEN if shard.last is None else PartitionState.CLOSED
    return Partition(shard.shard_id, parents, state)


def find_table(calls: Calls, address: ResourceAddress) -> tuple[Table, str]:
    """The table of an address, and its stream.

    Raises:
        ProviderFault: `NOT_FOUND` when there is no such table, `INVALID_REQUEST` when it has no stream.
        MulticloudDbError: `INVALID_REQUEST` for an address that is none of DynamoDB.
    """
    if address.database is not None:
        raise invalid_request(
            "address.database", f"is {address.database!r}", "DynamoDB has no databases: leave it out"
        )
    name = address.collection
    assert name is not None  # the gate has seen to it
    try:
        table = calls.describe_table(name)
    except ClientError as error:
        if code_of(error) != "ResourceNotFoundException":
            raise
        raise fault(
            ErrorCategory.NOT_FOUND,
            f"address.collection: there is no table {name!r} in this region and account; check its name, the "
            "region and the credentials",
        ) from error
    if table.arn is None:
        raise fault(
            ErrorCategory.INVALID_REQUEST,
            f"table {name!r} has no stream (StreamSpecification is missing); {_ENABLE.format(table=name)}",
        )
    return table, table.arn


def check_table(table: Table, spec: FeedSpec) -> None:
    """Refuse to promise items that the stream's records do not hold.

    Raises:
        ProviderFault: `UNSUPPORTED_CAPABILITY` that names the stream view type.
    """
    kind = table.view_type
    if kind is None:
        return  # disabled: what it held is read as it is
    way_out = (
        "DynamoDB cannot change the type of a stream: disable it and enable it with NEW_AND_OLD_IMAGES, "
        "after the old one has been read"
    )
    if spec.new_item_state_mode is NewItemStateMode.REQUIRE and kind not in _WITH_NEW:
        raise unsupported(
            f"new_item_state_mode=REQUIRE: StreamViewType is {kind}, without new items", way_out
        )
    if spec.old_item_state_mode is OldItemStateMode.REQUIRE and kind not in _WITH_OLD:
        raise unsupported(
            f"old_item_state_mode=REQUIRE: StreamViewType is {kind}, without old items", way_out
        )


def gone(calls: Calls, address: ResourceAddress, arn: str, shard_id: str) -> ProviderFault:
    """Why a shard or a record in it is not there: the table, the stream, or 24 hours.

    Raises:
        Exception: What boto3 raised for the question.
    """
    try:
        table = calls.describe_table(str(address.collection))
    except ClientError as error:
        if code_of(error) not in GONE:
            raise
        return fault(
            ErrorCategory.NOT_FOUND,
            f"table {address.collection!r} was deleted; one made under the same name since is another: "
            "start anew",
        )
    if table.arn != arn:
        return fault(
            ErrorCategory.INVALID_REQUEST,
            f"the stream of table {address.collection!r} is another by now: the table was recreated, or its "
            "stream disabled and enabled again; start anew: what the old one held is gone",
        )
    return expired(f"records behind this position in {shard_id} were trimmed")
