"""Describes what a database can do, natively or through emulation by this library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

import attrs
from attrs import frozen

from multiclouddb_api.redaction import html_table
from multiclouddb_api.validators import check_type, is_a


class Capability(StrEnum):
    """A feature that not every database has; the most important ones come first."""

    CHANGE_FEED = "change_feed"
    """The changes of a collection or a physical partition can be read, from `Now()` or a token."""
    CHANGE_FEED_BEGINNING = "change_feed_beginning"
    """A feed can start at `Beginning()`."""
    CHANGE_FEED_POINT_IN_TIME = "change_feed_point_in_time"
    """A feed can start at `AtTime(…)`."""
    CHANGE_FEED_LOGICAL_PARTITION_SCOPE = "change_feed_logical_partition_scope"
    """A feed can have the scope `LogicalPartition(…)`."""
    CHANGE_FEED_SNAPSHOT = "change_feed_snapshot"
    """A feed can start at `Snapshot()`, and continue with `on_expired=Resnapshot()`."""
    LOOKUP = "lookup"
    """`lookup` reads single rows by their keys."""
    CHANGE_FEED_ROWS = "change_feed_rows"
    """The rows alone can be read, from `Snapshot(changes=False)`."""
    CHANGE_FEED_ALL_VERSIONS = "change_feed_all_versions"
    """Every change is returned. Without it, a read returns only the newest change of each document since the
    last read."""
    CHANGE_FEED_DELETES = "change_feed_deletes"
    """Every deleted document is returned, as a `DELETE`."""
    CHANGE_FEED_CHANGE_TYPES = "change_feed_change_types"
    """`CREATE` differs from `UPDATE`; without it, every write of a document is an `UPDATE`."""
    CHANGE_FEED_OLD_ITEM_STATE = "change_feed_old_item_state"
    """Events can have the document before the change (`old_item_state`)."""
    CHANGE_FEED_DATABASE_SCOPE = "change_feed_database_scope"
    """A feed can have the scope `EntireDatabase()`."""
    CHANGE_FEED_CLUSTER_SCOPE = "change_feed_cluster_scope"
    """A feed can have the scope `EntireCluster()`."""
    RUN_COMMAND = "run_command"
    """`run_command` and `run_cursor_command` work."""


class Support(StrEnum):
    """Whether a capability can be used."""

    NATIVE = "native"
    """Works without an opt-in."""
    EMULATED = "emulated"
    """Works through this library, but only with the option in the note; without it, a request that needs the
    capability raises `UNSUPPORTED_CAPABILITY`."""
    UNSUPPORTED = "unsupported"
    """A request that needs it raises `UNSUPPORTED_CAPABILITY`; the note has the way out."""


@frozen
class CapabilityNote:
    """Whether one capability can be used, and what to know about it."""

    support: Support = attrs.field(validator=is_a(Support))
    """Whether the capability is native, emulated or unsupported."""
    note: str = attrs.field(default="", validator=is_a(str))
    """One line with its precision, cost, set-up or option, or with what to do instead."""


class ScanFloor(StrEnum):
    """Where the `order_key` of a scanned row lies among the changes of the same key."""

    HIGH = "high"
    """All rows of a scan have one `order_key`, above that of every change before the scan and below that of
    every change after its start."""
    LOW = "low"
    """All rows of a scan have one `order_key`, below that of every change."""
    ROW = "row"
    """Each row has the `order_key` of its last change."""


@frozen
class ScanFacts:
    """What a scan of a collection (`Snapshot()`) promises, and what it costs."""

    floor: ScanFloor = attrs.field(validator=is_a(ScanFloor))
    """Where the `order_key` of a scanned row lies."""
    settle_seconds: float = attrs.field(validator=is_a(int, float))
    """How many seconds it takes, at most, until a change that a scan or a look-up has shown is in the stream.
    0 if `read_until` proves that it is there: the stream has delivered the change once `read_until` has
    passed the moment at which the row was read."""
    price: str = attrs.field(validator=is_a(str))
    """One line with what the service charges for reading rows, in its own unit."""
    is_charged: bool = attrs.field(default=False, validator=is_a(bool))
    """True if the service reports a charge (`native_charge`), which `max_scan_rate` limits; False if that
    limits the rows."""
    ceiling: str = attrs.field(default=":", validator=is_a(str))
    """A text that sorts after the `order_key` of every change that the service can ever deliver."""


def _copied(notes: Mapping[Capability, CapabilityNote]) -> dict[Capability, CapabilityNote]:
    check_type("CapabilitySet.notes", notes, Mapping)
    for capability, note in notes.items():
        check_type("CapabilitySet.notes", capability, Capability)
        check_type("CapabilitySet.notes", note, CapabilityNote)
    return dict(notes)


@frozen
class CapabilitySet:
    """What one database can do if its resources are set up as documented.

    `capabilities[Capability.LOOKUP]` is the note of one capability; iterating gives all of them.
    """

    notes: Mapping[Capability, CapabilityNote] = attrs.field(converter=_copied, hash=False)
    """Maps each capability to its note; one that is missing is `UNSUPPORTED`."""
    scan: ScanFacts | None = attrs.field(default=None, validator=is_a(ScanFacts, type(None)))
    """What a scan promises and costs; None if the database cannot scan."""
    updates_may_lack_state: bool = attrs.field(default=False, validator=is_a(bool))
    """True if an update can come without its document although the collection is set up as documented: the
    document is read when the change is, and may have been deleted by then. A table that follows keeps the
    row as it was until the delete, which comes later (`missing_state="keep"`)."""

    def __getitem__(self, capability: Capability) -> CapabilityNote:
        check_type("capability", capability, Capability)
        return self.notes.get(capability, CapabilityNote(Support.UNSUPPORTED))

    def __iter__(self) -> Iterator[Capability]:
        return iter(Capability)

    def __repr__(self) -> str:
        lines = (f"  {each.name}: {self._line(each)}" for each in self)
        return "\n".join(["<CapabilitySet", *lines, ">"])

    def _line(self, capability: Capability) -> str:
        found = self[capability]
        return f"{found.support.value} ({found.note})" if found.note else found.support.value

    def _repr_html_(self) -> str:
        rows = [(each.name, self[each].support.value, self[each].note) for each in self]
        return html_table("capabilities", ["capability", "support", "note"], rows)

    def is_supported(self, capability: Capability) -> bool:
        """Return whether the capability works, if need be with the option in its note.

        Args:
            capability: The capability.
        """
        return self[capability].support is not Support.UNSUPPORTED
