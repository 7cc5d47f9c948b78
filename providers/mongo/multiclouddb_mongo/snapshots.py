"""Plans the scan of a collection for `Snapshot()`, and divides it into segments."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

from multiclouddb_api import EntireCollection, LogicalPartition, ResourceAddress, invalid_request
from multiclouddb_mongo.options import MongoOptions
from multiclouddb_mongo.partitions import Found, check_provisioned
from multiclouddb_mongo.position import After, place_of
from multiclouddb_mongo.scan_position import Range, Rest, floor_of, moment_of
from multiclouddb_mongo.scan_source import ScanSource
from multiclouddb_spi import (
    Cursor,
    Deadline,
    FeedSpec,
    ScanPlan,
    Seed,
    Segment,
    segment_id_of,
    unsupported,
)

__all__ = ["check_snapshot", "cut", "plan_scan"]

# Eight segments are read at a time, so a larger collection should have more segments. On the other hand,
# larger segments need fewer cursors.
_LEAST_WIDTH: Final = 5_000
_MOST_WIDTH: Final = 50_000
_FEW_SEGMENTS: Final = 16
_MOST_SEGMENTS: Final = 32_000
# Counting this many keys takes half a second. For larger segments, samples are accurate enough to find the
# ends.
_MOST_COUNTED: Final = 1_000_000
_MOST_SAMPLED_SEGMENTS: Final = 500
_MARK: Final = "82"
_TIME: Final = slice(2, 18)


def check_snapshot(spec: FeedSpec, address: ResourceAddress, found: Found, *, encrypted: bool) -> None:
    """Refuse a snapshot whose content would differ from that of the stream.

    Args:
        spec: The specification of the feed.
        address: The address, with the database filled in.
        found: The collection as it is now.
        encrypted: True if the client itself decrypts fields.

    Raises:
        Exception: `UNSUPPORTED_CAPABILITY` or `INVALID_REQUEST`; the message says what to change.
    """
    if not isinstance(spec.scope, EntireCollection | LogicalPartition):
        raise unsupported(
            f"Snapshot() is not supported for {type(spec.scope).__name__}",
            "read each collection with EntireCollection()",
        )
    if encrypted:
        raise unsupported(
            "Snapshot() is not supported by a client with auto_encryption_opts, because PyMongo cannot read "
            "raw batches with that option",
            "connect without auto_encryption_opts, and decrypt the fields of the events",
        )
    options = spec.options
    assert isinstance(options, MongoOptions)
    native = options.start()
    if native is not None:
        raise invalid_request(
            f"MongoOptions.{native}",
            "is given together with Snapshot()",
            "leave it out, because a snapshot starts the stream itself",
        )
    if options.pipeline:
        raise invalid_request(
            "MongoOptions.pipeline",
            "is given together with Snapshot(), but its stages apply only to changes, not to rows",
            "leave it out and filter the events",
        )
    check_provisioned(spec, address, found)


def plan_scan(
    source: ScanSource, spec: FeedSpec, found: Found, seeds: list[Seed], segments: int | None
) -> ScanPlan:
    """Plan a scan whose stream has begun.

    Args:
        source: The collection to scan.
        spec: The specification of the feed.
        found: The properties of the collection, as they were after the stream had begun.
        seeds: The start position of the stream.
        segments: The number of segments that the application requests, or None.

    Raises:
        ProviderFault: Raised if the server's positions do not contain their time.
    """
    place = place_of(seeds[0].cursor)
    if not (isinstance(place, After) and place.data.startswith(_MARK)):
        raise unsupported(
            "Snapshot() needs resume tokens that begin with the cluster time, as those of MongoDB do",
            "use MongoDB, or read the rows with its own driver",
        )
    time = place.data[_TIME].upper()
    names = source.shard_key() if found.there else ()
    records = source.count() if found.there else 0
    whole = isinstance(spec.scope, EntireCollection)
    width, left = (0, 1) if found.clustered or not whole else _cuts(records, segments, sharded=bool(names))
    rest = Rest(secrets.token_hex(6), time, found.uuid or "", width, left, names=names)
    number = left or max(1, -(-records // width))
    if segments is not None and width:
        number = max(1, min(segments, -(-records // width)))
    return ScanPlan(
        rest.plan_id,
        rest.cursor(),
        tuple(seeds),
        floor_of(time),
        moment_of(time),
        number,
        records if whole else None,
    )


def _cuts(records: int, segments: int | None, *, sharded: bool) -> tuple[int, int]:
    """Return the number of rows per segment and the maximum number of segments.

    The number of rows is 0 if keys are sampled. The number of segments is 0 if there is no maximum.
    """
    if segments is None:
        width = min(_MOST_WIDTH, max(_LEAST_WIDTH, -(-records // _FEW_SEGMENTS)))
        width = max(width, -(-records // _MOST_SEGMENTS))
    else:
        width = max(1, -(-records // segments))
    if not sharded and width <= _MOST_COUNTED:
        return width, segments or 0
    wanted = -(-records // width) if segments is None else segments
    return 0, max(1, min(_MOST_SAMPLED_SEGMENTS, wanted))


def cut(
    source: ScanSource, rest: Rest, count: int, deadline: Deadline
) -> tuple[list[Segment], Cursor | None]:
    """Take the next segments from a plan.

    Args:
        source: The scanned collection.
        rest: The plan.
        count: The maximum number of segments.
        deadline: The time after which no further segment is planned.
    """
    found: list[Segment] = []
    for end in _ends(source, rest, count):
        found.append(_segment(rest, rest.until(end)))
        if not end:
            return found, None
        rest = rest.after(end)
        if len(found) >= count or deadline.passed():
            break
    return found, rest.cursor()


def _ends(source: ScanSource, rest: Rest, count: int) -> Iterator[str]:
    """Return the ends of the next `count` segments. The end of the last segment is an empty text."""
    if not rest.uuid or rest.left == 1:
        yield ""
    elif rest.width:
        while rest.left != 1 and (end := source.counted(rest)) is not None:
            yield end
            rest = rest.after(end)
        yield ""
    else:
        ends = source.sampled(rest, min(count, rest.left - 1))
        yield from ends
        if len(ends) < count:
            yield ""


def _segment(rest: Rest, part: Range) -> Segment:
    return Segment(segment_id_of(rest.plan_id, f"{rest.number:x}"), part.cursor(), rest.width or None)
