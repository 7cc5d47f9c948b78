"""What the provider can do, as data: reading it needs no boto3."""

from __future__ import annotations

from typing import Final

from multiclouddb_api import Capability, CapabilityNote, CapabilitySet, ScanFacts, ScanFloor, Support

EMPTY_ANSWERS: Final = 16
"""How many answers without records in a row show that an open shard was read to its end."""
DELAY_SECONDS: Final = 30.0
"""A shard that was read to its end was read up to this many seconds before its last answer.

The last `EMPTY_ANSWERS` answers were requested within these seconds, unless the feed has very many shards.
"""
MOST_DIGITS: Final = 56
"""How many digits a sequence number has at most: 40 in DynamoDB, and those of Kinesis in LocalStack."""
CEILING: Final = f"{MOST_DIGITS + 1}"
"""Sorts after every `order_key`, which begins with the number of digits."""
FROM_THE_OLDEST: Final = (
    "start at Beginning() and leave out events whose event.timestamp is before the start that you want"
)
"""What to do where a feed can't start at a time."""
_NATIVE, _UNSUPPORTED = Support.NATIVE, Support.UNSUPPORTED
_NO_WIDER: Final = "a stream covers one table; read each table with EntireCollection()"
# A stream usually shows a change within a second.
_SETTLE_SECONDS: Final = 10.0

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE,
            "enable the table's stream (StreamSpecification); an event contains the new item only if "
            "StreamViewType is NEW_IMAGE or NEW_AND_OLD_IMAGES",
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(
            _NATIVE, "starts at the oldest record; a stream keeps records for 24 hours"
        ),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _NATIVE,
            "needs botocore 1.43.114 or newer, and a server that knows the ShardIteratorType AT_TIMESTAMP, "
            "unlike DynamoDB Local 1.11; the start is in whole seconds, up to one second early, and up to "
            "two minutes in a shard that the service lists late",
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
            _UNSUPPORTED,
            "the feed cannot select changes by partition key; read PhysicalPartition(…) or "
            "EntireCollection() and keep the events whose event.key.partition_key you want",
        ),
        Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
            _NATIVE,
            "convergent: each item is as it was when it was read; needs the permission dynamodb:Scan; costs "
            "one read unit for every 4 KB",
        ),
        Capability.LOOKUP: CapabilityNote(
            _NATIVE,
            "needs the permission dynamodb:BatchGetItem; costs one read unit for every 4 KB of an item",
        ),
        Capability.CHANGE_FEED_ROWS: CapabilityNote(_NATIVE, "costs what the scan of a snapshot costs"),
        Capability.CHANGE_FEED_ALL_VERSIONS: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_DELETES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_CHANGE_TYPES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _NATIVE, "needs a stream of type OLD_IMAGE or NEW_AND_OLD_IMAGES"
        ),
        Capability.CHANGE_FEED_DATABASE_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.CHANGE_FEED_CLUSTER_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.RUN_COMMAND: CapabilityNote(_UNSUPPORTED, "use boto3 for everything except the feed"),
    },
    ScanFacts(
        ScanFloor.LOW,
        _SETTLE_SECONDS,
        "one read unit for every 4 KB that a scan reads, at least one for each request; the service counts a "
        "table's bytes every six hours",
        is_charged=True,
        ceiling=CEILING,
    ),
)
"""The capabilities of a table with an enabled stream."""


def capabilities_of(version: str, *, knows_times: bool) -> CapabilitySet:
    """Return the capabilities with an installed botocore.

    Args:
        version: Its version.
        knows_times: True if it can ask for the records since a time.
    """
    if knows_times:
        return CAPABILITIES
    lacking = CapabilityNote(
        _UNSUPPORTED,
        f"botocore {version} cannot ask for the records since a time: install botocore 1.43.114 or newer, or "
        f"{FROM_THE_OLDEST}",
    )
    notes = {**CAPABILITIES.notes, Capability.CHANGE_FEED_POINT_IN_TIME: lacking}
    return CapabilitySet(notes, CAPABILITIES.scan)
