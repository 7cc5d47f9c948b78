"""Orders the shards of a stream, and checks the required settings of the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

from botocore.exceptions import ClientError

from multiclouddb_api import (
    ErrorCategory,
    FeedEnded,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
    invalid_request,
)
from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.errors import GONE, code_of, expired_records
from multiclouddb_dynamo.position import (
    EARLY_SECONDS,
    Horizon,
    Latest,
    Place,
    Start,
    cursor_of,
    seconds_at,
)
from multiclouddb_dynamo.shards import Shard, by_parent
from multiclouddb_spi import (
    Awaiting,
    Child,
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
from multiclouddb_spi.faults import START_ANEW

__all__ = [
    "check_table",
    "end_of",
    "find_table",
    "gone",
    "headroom",
    "lost",
    "oldest_left",
    "replaced",
    "seed_at_end",
    "seeds_at_oldest",
    "seeds_of_late",
    "seeds_of_missed",
    "to_partition",
    "with_children",
]

_WITH_NEW: Final = frozenset({"NEW_IMAGE", "NEW_AND_OLD_IMAGES"})
_WITH_OLD: Final = frozenset({"OLD_IMAGE", "NEW_AND_OLD_IMAGES"})
_ENABLE: Final = (
    "enable it: aws dynamodb update-table --table-name {table} "
    "--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES"
)
# A shard is closed after about four hours, so all records of an open shard are younger than this.
_LIFE_SECONDS: Final = 6 * 3600
_RETENTION_SECONDS: Final = 24 * 3600
# Every available record is younger than a day. An hour is subtracted, because a reader needs time to start.
_KEPT_SECONDS: Final = 23 * 3600
_ENDED: Final = "the stream was disabled or its table deleted; all its records have been read"


def end_of(children: Iterable[Shard], place: Place, *, settled: bool = False) -> Outcome:
    """Return the outcome for a shard that was read to its end.

    The outcome contains the known children. If no child is known, the outcome is `Ended` if
    `settled` is True, and otherwise `Awaiting`. The service does not show whether the list of
    children is complete, because one child may be listed later than the others.

    Args:
        children: The children of the shard, as far as they are known.
        place: The position at which reading the shard ended.
        settled: True if the stream accepts no more records and no more children will be listed.
    """
    found = tuple(
        Child(shard.shard_id, (shard.parent,), cursor_of(_start_of(shard, place)))
        for shard in children
        if shard.parent is not None
    )
    if found:
        return Drained(found, complete=False)
    return Ended(FeedEnded(_ENDED)) if settled else Awaiting()


def _start_of(shard: Shard, place: Place) -> Place:
    """Return the start position of a shard.

    The records of the shard cannot be older than the position of its parent. The records of an open
    shard are also never older than `_LIFE_SECONDS`.
    """
    ages = [seconds for seconds in (seconds_at(place), _age(shard)) if seconds is not None]
    if isinstance(place, Horizon) and not ages:
        # If the parent is at `Beginning` and has no record, no time is known. Its iterator cannot be used for
        # the child.
        return Horizon(place.since)
    if isinstance(place, Latest) and place.since is not None and max(ages) == seconds_at(place):
        # The parent may have ended earlier, but records before `Now` are not wanted.
        return Latest(place.since)
    return Start(max(ages, default=None))


def _age(shard: Shard) -> int | None:
    if shard.last is not None or shard.seen is None:
        return None
    return max(0, shard.seen - _LIFE_SECONDS)


def lost(shard_id: str, shards: Mapping[str, Shard]) -> Drained:
    """Return the outcome for a fully read shard that is no longer listed.

    The children of the shard are unknown, and its descendants may no longer exist. If the
    descendants no longer exist, the next read reports that the position has expired.
    """
    left = _orphans(shards) or set(shards)
    children = (Child(name, (shard_id,), cursor_of(Start(0))) for name in sorted(left))
    return Drained(tuple(children), instead=True)


def _orphans(shards: Mapping[str, Shard]) -> set[str]:
    """Return the shards whose parent is no longer listed."""
    return {
        shard.shard_id for shard in shards.values() if shard.parent is not None and shard.parent not in shards
    }


def seeds_at_oldest(
    shards: Mapping[str, Shard], since: int | None, unlisted: Collection[str] = ()
) -> list[Seed]:
    """Return a start position at the oldest record of every shard, with parents first.

    Args:
        shards: The shards that the service lists.
        since: The service's time, or None.
        unlisted: The existing parents of these shards that the service does not list at present.
    """
    present = shards.keys() | set(unlisted)
    return [Seed(name, (), cursor_of(Horizon(since))) for name in unlisted] + [
        Seed(
            shard.shard_id,
            (shard.parent,) if shard.parent in present and shard.parent is not None else (),
            cursor_of(_start_of(shard, Horizon(since))),
        )
        for shard in shards.values()
    ]


def oldest_left(
    shards: Mapping[str, Shard],
    shard_ids: Iterable[str],
    since: int | None,
    can_be_read: Callable[[Shard], bool],
) -> list[Seed]:
    """Return the seeds (start positions) at which reading can resume for expired shards.

    If a shard is no longer listed, its descendants are not known, because its children may be gone
    too. Therefore every shard with an unlisted parent may be a descendant of the expired shard.
    Some of these shards may not be descendants. Reading a shard that is not a descendant repeats
    events, but leaving out a descendant would lose events.

    Args:
        shards: The shards that the service lists.
        shard_ids: The expired shards.
        since: The service's time, or None.
        can_be_read: A function that asks the service whether a listed shard can be read. A shard
            that cannot be read is replaced by its children.
    """
    found = set(shard_ids)
    if not found <= shards.keys():
        found |= _orphans(shards)
    left, pending = dict(shards), [name for name in found if name in shards]
    children = by_parent(shards.values())
    while pending:
        name = pending.pop()
        if name in left and not can_be_read(left[name]):
            del left[name]
            next_ones = [shard.shard_id for shard in children.get(name, ())]
            pending += next_ones
            found.update(next_ones)
    return [seed for seed in seeds_at_oldest(left, since) if seed.partition_id in found]


def seed_at_end(shard: Shard, since: int | None, children: tuple[str, ...] = ()) -> Seed:
    """Return a seed (start position) after the last record of an ended shard.

    Args:
        shard: The shard.
        since: Records older than this time are not needed.
        children: The children of the shard that have their own start positions.
    """
    assert shard.last is not None
    return Seed(shard.shard_id, (), cursor_of(Latest(since, None, shard.last)), children)


def with_children(shards: Mapping[str, Shard], most: int) -> dict[str, tuple[str, ...]]:
    """Map ended shards to their listed children. The service may list another child of such a shard later.

    Args:
        shards: The shards that the service lists.
        most: The maximum number of shards to return. Shards with fewer generations of descendants, which have
            usually ended later, come first.
    """
    parents = {
        name: (shard.parent,) if shard.parent in shards and shard.parent is not None else ()
        for name, shard in shards.items()
    }
    heights, children = _heights(parents), by_parent(shards.values())
    ended = [name for name, shard in shards.items() if shard.last is not None and name in children]
    nearest = sorted(ended, key=lambda name: heights[name])[:most]
    return {name: tuple(child.shard_id for child in children[name]) for name in nearest}


def _is_reached(shard: Shard, shards: Mapping[str, Shard], later: Mapping[str, Shard]) -> bool:
    """Return True if a reader reaches this shard from a seed of one of the two listings."""
    if shard.parent is None:
        return False
    parent = shards.get(shard.parent)
    return shard.parent in later if parent is None else parent.last is None


def seeds_of_late(shards: Mapping[str, Shard], later: Mapping[str, Shard], since: int | None) -> list[Seed]:
    """Return seeds (start positions) for children of shards that split between two listings.

    A reader that starts at the seeds of the first listing does not reach these children.
    """
    return [
        Seed(shard.shard_id, (), cursor_of(Latest(since)))
        for shard in later.values()
        if shard.shard_id not in shards and not _is_reached(shard, shards, later)
    ]


def seeds_of_missed(
    missed: Mapping[str, tuple[str, ...]],
    shards: Mapping[str, Shard],
    since: int | None,
    is_trimmed: Callable[[Shard], bool],
) -> list[Seed]:
    """Return the seeds (start positions) of the shards that the feed missed.

    Args:
        missed: Maps each missed shard to its missed parents.
        shards: The shards that the service lists.
        since: Records older than this time are not needed; None means that no bound is known.
        is_trimmed: A function that asks the service whether the oldest records of a shard no longer
            exist. The function is called only if the shard's records may be a day old. The number
            of generations of descendants shows how old the records may be.
    """
    heights = _heights(missed)
    return [
        Seed(name, parents, cursor_of(_start_of_missed(shards[name], heights[name], since, is_trimmed)))
        for name, parents in missed.items()
    ]


def _start_of_missed(
    shard: Shard, height: int, since: int | None, is_trimmed: Callable[[Shard], bool]
) -> Place:
    if shard.seen is None:  # the service gives no time, so the shard's age is not known
        return Start(None)
    oldest = shard.seen - _LIFE_SECONDS * (height + 1)
    kept = shard.seen - _KEPT_SECONDS
    if since is not None and since - EARLY_SECONDS > max(oldest, kept):
        return Latest(since)
    if oldest >= kept:
        return Start(max(0, oldest))
    return Start(0 if is_trimmed(shard) else max(0, kept))


def _heights(missed: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Count the generations of descendants of each shard; `missed` maps each shard to its parents."""
    heights = dict.fromkeys(missed, 0)
    pending = list(missed)
    while pending:
        name = pending.pop()
        for parent in missed[name]:
            if heights[parent] <= heights[name]:
                heights[parent] = heights[name] + 1
                pending.append(parent)
    return heights


def headroom(place: Place, now: datetime) -> float | None:
    """Return the seconds until a position expires; None if the position has no time."""
    seconds = seconds_at(place)
    return None if seconds is None else max(0.0, seconds + _RETENTION_SECONDS - now.timestamp())


def to_partition(shard: Shard) -> Partition:
    """Convert a shard to a `Partition`."""
    parents = (shard.parent,) if shard.parent is not None else ()
    state = PartitionState.OPEN if shard.last is None else PartitionState.CLOSED
    return Partition(shard.shard_id, parents, state)


def find_table(calls: Calls, address: ResourceAddress) -> tuple[Table, str]:
    """Return the table of an address, and its stream.

    Raises:
        ProviderFault: `NOT_FOUND` if the table does not exist, `INVALID_REQUEST` if it has no stream.
        MulticloudDbError: `INVALID_REQUEST` for an address that cannot exist in DynamoDB.
    """
    if address.database is not None:
        raise invalid_request(
            "address.database", f"is {address.database!r}", "leave it out, because DynamoDB has no databases"
        )
    name = address.collection
    assert name is not None  # `gate` has already checked the name
    try:
        table = calls.describe_table(name)
    except ClientError as error:
        if code_of(error) != "ResourceNotFoundException":
            raise
        raise ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"address.collection: there is no table {name!r} in this region and account; check its name, the "
            "region and the credentials",
        ) from error
    if table.arn is None:
        raise ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"table {name!r} has no stream (StreamSpecification is missing); {_ENABLE.format(table=name)}",
        )
    return table, table.arn


def check_table(table: Table, spec: FeedSpec) -> None:
    """Refuse a request for item images that the stream's records do not contain.

    Raises:
        ProviderFault: `UNSUPPORTED_CAPABILITY` with a message that names the stream view type.
    """
    kind = table.view_type
    if kind is None:
        return  # the stream is disabled; its remaining records are read as they are
    way_out = (
        "DynamoDB cannot change the type of a stream: disable the stream, read it to its end, and then "
        "enable a new one with NEW_AND_OLD_IMAGES"
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
    """Return the reason why a shard, or a record in it, no longer exists.

    Either the table or its stream no longer exists, or the 24 hours of the retention have passed.

    Raises:
        Exception: The error that boto3 raised.
    """
    found = replaced(calls, address, arn)
    return found or expired_records(f"records after this position in {shard_id} were trimmed")


def replaced(calls: Calls, address: ResourceAddress, arn: str) -> ProviderFault | None:
    """Return the reason why a stream no longer belongs to its table.

    Either the table or the stream no longer exists.

    Return None if the stream still belongs to the table.

    Raises:
        Exception: The error that boto3 raised for this check.
    """
    try:
        table = calls.describe_table(str(address.collection))
    except ClientError as error:
        if code_of(error) not in GONE:
            raise
        return ProviderFault.of(
            ErrorCategory.NOT_FOUND,
            f"table {address.collection!r} was deleted; a table created later under the same name is "
            f"another table; {START_ANEW}",
        )
    if table.arn != arn:
        return ProviderFault.of(
            ErrorCategory.INVALID_REQUEST,
            f"the stream of table {address.collection!r} was replaced: the table was recreated, or its "
            f"stream disabled and enabled again, and the old stream's changes are gone; {START_ANEW}",
        )
    return None
