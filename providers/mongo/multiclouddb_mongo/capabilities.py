"""What the provider can do, as data: reading it needs no PyMongo."""

from __future__ import annotations

from typing import Final

from multiclouddb_api import Capability, CapabilityNote, CapabilitySet, ScanFacts, ScanFloor, Support

_NATIVE: Final = Support.NATIVE

CAPABILITIES: Final = CapabilitySet(
    {
        Capability.CHANGE_FEED: CapabilityNote(
            _NATIVE,
            "needs a replica set or a sharded cluster; an update contains the document as it is "
            "when the update is read, unless the collection keeps post-images "
            "(changeStreamPreAndPostImages)",
        ),
        Capability.CHANGE_FEED_BEGINNING: CapabilityNote(
            _NATIVE, "starts at the oldest change in the operation log (oplog)"
        ),
        Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
            _NATIVE,
            "starts up to 11 seconds early, and by as much more as the cluster time is ahead of the servers' "
            "clocks; it starts late only for a change whose write takes the server more than 10 seconds",
        ),
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
            _NATIVE, "the server filters the changes, but it scans its whole log for every feed"
        ),
        Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
            _NATIVE,
            "convergent: each row is as it was when it was read; needs the privilege `find` on the "
            "collection",
        ),
        Capability.LOOKUP: CapabilityNote(
            _NATIVE,
            "needs the privilege `find` on the collection; reads by _id, with every write that was "
            "acknowledged before the call",
        ),
        Capability.CHANGE_FEED_ROWS: CapabilityNote(_NATIVE, "costs what the scan of a snapshot costs"),
        Capability.CHANGE_FEED_ALL_VERSIONS: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_DELETES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_CHANGE_TYPES: CapabilityNote(_NATIVE),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
            _NATIVE, "needs a collection with pre-images (changeStreamPreAndPostImages)"
        ),
        Capability.CHANGE_FEED_DATABASE_SCOPE: CapabilityNote(
            _NATIVE,
            "needs the role `read` on the database; the tables of a mirror of SHOP/* share one reading, "
            "except those of collections with images",
        ),
        Capability.CHANGE_FEED_CLUSTER_SCOPE: CapabilityNote(
            _NATIVE,
            "needs the role `readAnyDatabase` on the cluster; Snapshot() and Resnapshot() need a database or "
            "a collection each",
        ),
        Capability.RUN_COMMAND: CapabilityNote(_NATIVE, "commands are sent unmodified and never retried"),
    },
    ScanFacts(ScanFloor.HIGH, 0.0, "a scan has no price of its own; it reads each document once, by _id"),
    updates_may_lack_state=True,
)
"""The capabilities of a replica set."""
