"""Defines profiles, which make a store behave like one of the services when its feed is read.

With `profile="dynamo"`, a store on a laptop refuses the same requests as DynamoDB. A profile limits the
requests that the store accepts. A profile changes neither the file nor the content of the log.

Under every profile, a position is a place in the log. Therefore a token that was made under
`dynamo`, `spanner`, `cosmos` or no profile is valid under all four. The current profile must also
allow all other parts of the request. Under `mongo`, the whole collection is one partition, whereas
the other profiles show the store's partitions. Therefore `mongo` refuses the tokens and partition
ids of the other profiles with `INVALID_REQUEST`. The other profiles refuse the tokens and partition
ids of `mongo` with `INVALID_REQUEST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from attrs import frozen

from multiclouddb_api import Capability, CapabilityNote, CapabilitySet, ScanFacts, ScanFloor, Support

_SECOND: Final = 1_000_000

_PLAIN: Final = {
    Capability.CHANGE_FEED: CapabilityNote(Support.NATIVE, "several processes can use the same file"),
    Capability.CHANGE_FEED_BEGINNING: CapabilityNote(
        Support.NATIVE, "changes are kept until EmbeddedStore.trim removes them"
    ),
    Capability.CHANGE_FEED_POINT_IN_TIME: CapabilityNote(
        Support.NATIVE, "the start is exact to the microsecond"
    ),
    Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: CapabilityNote(
        Support.NATIVE, "the read uses an index on the partition key"
    ),
    Capability.CHANGE_FEED_SNAPSHOT: CapabilityNote(
        Support.NATIVE, "convergent: each row is as it was when its page was read"
    ),
    Capability.LOOKUP: CapabilityNote(Support.NATIVE, "the rows of one call are of one moment"),
    Capability.CHANGE_FEED_ROWS: CapabilityNote(Support.NATIVE, "costs what the scan of a snapshot costs"),
    Capability.CHANGE_FEED_ALL_VERSIONS: CapabilityNote(Support.NATIVE),
    Capability.CHANGE_FEED_DELETES: CapabilityNote(Support.NATIVE),
    Capability.CHANGE_FEED_CHANGE_TYPES: CapabilityNote(Support.NATIVE),
    Capability.CHANGE_FEED_OLD_ITEM_STATE: CapabilityNote(
        Support.NATIVE, 'needs a collection created with images="new_and_old"'
    ),
    **dict.fromkeys(
        (Capability.CHANGE_FEED_DATABASE_SCOPE, Capability.CHANGE_FEED_CLUSTER_SCOPE),
        CapabilityNote(Support.UNSUPPORTED, "read each collection with EntireCollection()"),
    ),
    Capability.RUN_COMMAND: CapabilityNote(
        Support.UNSUPPORTED, "write with EmbeddedStore, or open the file with sqlite3"
    ),
}


@frozen(eq=False, repr=False)
class Profile:
    """The limits of one profile."""

    name: str  # the value of `profile=`
    capabilities: CapabilitySet  # the capabilities of the provider under this profile
    precision: int = 1  # `AtTime` is rounded down to a multiple of this many microseconds
    whole: bool = False


_NATIVE, _EMULATED, _UNSUPPORTED = Support.NATIVE, Support.EMULATED, Support.UNSUPPORTED
_NO_KEY_SCOPE: Final = (
    _UNSUPPORTED,
    "the feed cannot select changes by partition key; read PhysicalPartition(…) or EntireCollection() and "
    "keep the events whose event.key.partition_key you want",
)
_BACKFILL: Final = (
    "a feed of all versions can start only at Now() or at a token; for this start, ask for a backfill with "
    "provider_options=EmbeddedOptions(backfill=True), or else start at Now()"
)
_NO_WIDER: Final = (
    "MongoDB can do this, but the embedded store cannot; read each collection with EntireCollection()"
)

_Change: TypeAlias = str | tuple[Support, str]

_SCAN: Final = ScanFacts(ScanFloor.HIGH, 0.0, "rows have no price")

PLAIN: Final = Profile("", CapabilitySet(_PLAIN, _SCAN))
"""The profile without limits."""


def _profile(
    name: str, changes: Mapping[Capability, _Change], *, precision: int = 1, whole: bool = False
) -> Profile:
    """Make a profile from its notes; a note alone does not change the support."""
    narrowed = {}
    for capability, change in changes.items():
        support, note = (_PLAIN[capability].support, change) if isinstance(change, str) else change
        narrowed[capability] = CapabilityNote(support, f"profile={name}: {note}")
    notes = {**_PLAIN, **narrowed}
    scans = notes[Capability.CHANGE_FEED_SNAPSHOT].support is not Support.UNSUPPORTED
    return Profile(name, CapabilitySet(notes, _SCAN if scans else None), precision, whole)


_DYNAMO: Final = _profile(
    "dynamo",
    {
        Capability.CHANGE_FEED_BEGINNING: "DynamoDB keeps changes for 24 hours; a store keeps them until "
        "EmbeddedStore.trim",
        Capability.CHANGE_FEED_POINT_IN_TIME: "the start is in whole seconds, up to one second early; "
        "DynamoDB needs botocore 1.43.114 or newer",
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: _NO_KEY_SCOPE,
        Capability.CHANGE_FEED_OLD_ITEM_STATE: "DynamoDB needs a stream of type NEW_AND_OLD_IMAGES; a store "
        'needs images="new_and_old"',
    },
    precision=_SECOND,
)
_SPANNER: Final = _profile(
    "spanner",
    {
        Capability.CHANGE_FEED_BEGINNING: "Spanner keeps changes for retention_period, a day by default; a "
        "store keeps them until EmbeddedStore.trim",
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: _NO_KEY_SCOPE,
        Capability.CHANGE_FEED_OLD_ITEM_STATE: "Spanner needs a change stream with value_capture_type "
        'NEW_ROW_AND_OLD_VALUES; a store needs images="new_and_old"',
    },
)
_COSMOS: Final = _profile(
    "cosmos",
    {
        Capability.CHANGE_FEED_BEGINNING: (
            _EMULATED,
            f"{_BACKFILL}; the backfill returns the changes, while that of Cosmos DB returns the current "
            "items",
        ),
        Capability.CHANGE_FEED_POINT_IN_TIME: (
            _EMULATED,
            f"{_BACKFILL}; in whole seconds, up to one second early",
        ),
        **dict.fromkeys(
            (Capability.CHANGE_FEED_SNAPSHOT, Capability.CHANGE_FEED_ROWS),
            (
                _UNSUPPORTED,
                "start at Beginning() with the backfill, which reads the present items first",
            ),
        ),
        Capability.CHANGE_FEED_OLD_ITEM_STATE: (
            _UNSUPPORTED,
            "the feed contains no previous items; keep what you need from earlier events",
        ),
    },
    precision=_SECOND,
)
_MONGO: Final = _profile(
    "mongo",
    {
        Capability.CHANGE_FEED: "a collection has one stream, which is its only physical partition, 0",
        Capability.CHANGE_FEED_BEGINNING: "MongoDB keeps changes as long as the oplog has room; a store "
        "keeps them until EmbeddedStore.trim",
        Capability.CHANGE_FEED_POINT_IN_TIME: "the start is in whole seconds; a store starts up to 1 second "
        "early, and MongoDB up to 11 seconds",
        Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE: "MongoDB's server checks every change; a store uses "
        "an index",
        Capability.CHANGE_FEED_OLD_ITEM_STATE: "MongoDB needs a collection with "
        'changeStreamPreAndPostImages; a store needs images="new_and_old"',
        Capability.CHANGE_FEED_DATABASE_SCOPE: _NO_WIDER,
        Capability.CHANGE_FEED_CLUSTER_SCOPE: _NO_WIDER,
        Capability.RUN_COMMAND: "MongoDB can do this, but a store has no commands; write with EmbeddedStore",
    },
    precision=_SECOND,
    whole=True,
)

PROFILES: Final[Mapping[str, Profile]] = {each.name: each for each in (_COSMOS, _DYNAMO, _MONGO, _SPANNER)}
"""Maps the name of each profile to the profile; `PLAIN` has no name and is not included."""
