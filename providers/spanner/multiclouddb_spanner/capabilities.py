"""What the provider can do, as data: reading it needs no client of Google."""

from __future__ import annotations

from typing import Final

from multiclouddb_api import Capability, CapabilityNote, CapabilitySet, ScanFacts, ScanFloor, Support

_NATIVE, _UNSUPPORTED = Support.NATIVE, Support.UNSUPPORTED
_NO_WIDER: Final = "read each database with EntireDatabase(), or each table with EntireCollection()"

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE,
            "a change stream has to watch the table (CREATE CHANGE STREAM … FOR …); updates contain the new "
            "row only with value_capture_type NEW_ROW or NEW_ROW_AND_OLD_VALUES",
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(
            _NATIVE,
            "starts at the creation of the stream, or, if its retention_period has passed since then, a "
            "minute after the oldest moment that the stream keeps",
        ),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _NATIVE, "the start is exact to the microsecond"
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
            _UNSUPPORTED,
            "a change stream has no partition keys; read EntireCollection() and keep the events "
            "whose event.key you want",
        ),
        Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
            _NATIVE,
            "point in time: every row is as it was at one moment T; if the scan "
            "takes longer than the database keeps T's data (version_retention_period, one hour by default), "
            "it continues with the data of a later moment; needs the permission "
            "spanner.databases.read, and spanner.databases.partitionRead to read a large table in parallel",
        ),
        Capability.LOOKUP: CapabilityNote(
            _NATIVE, "the rows of one request are of one moment; needs the permission spanner.databases.read"
        ),
        Capability.CHANGE_FEED_ROWS: CapabilityNote(_NATIVE, "costs what the scan of a snapshot costs"),
        Capability.CHANGE_FEED_ALL_VERSIONS: CapabilityNote(
            _NATIVE, "the changes of a row in one transaction are one event"
        ),
        Capability.CHANGE_FEED_DELETES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_CHANGE_TYPES: CapabilityNote(_NATIVE, "a replaced row is a CREATE"),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _NATIVE, "needs a stream with value_capture_type NEW_ROW_AND_OLD_VALUES"
        ),
        Capability.CHANGE_FEED_DATABASE_SCOPE: CapabilityNote(
            _NATIVE,
            "reads one change stream once for all its tables: the only one FOR ALL, or the one named by "
            "change_stream, which may watch some tables; a Snapshot() reads all of them as they were at one "
            "moment; the tables of a mirror of SHOP/* share it",
        ),
        Capability.CHANGE_FEED_CLUSTER_SCOPE: CapabilityNote(_UNSUPPORTED, _NO_WIDER),
        Capability.RUN_COMMAND: CapabilityNote(
            _UNSUPPORTED, "use google-cloud-spanner for everything except the feed"
        ),
    },
    ScanFacts(ScanFloor.HIGH, 0.0, "a read has no price of its own; it uses the instance's compute capacity"),
)
"""The capabilities of a database with a change stream."""
