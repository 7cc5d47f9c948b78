"""Describes what a database can do, natively or through emulation by this library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum

import attrs
from attrs import frozen

from multiclouddb_api.redaction import html_table
from multiclouddb_api.validators import check_type, is_a


class Capability(StrEnum):
    """A feature that only some databases support. The most important capabilities come first."""

    CHANGE_FEED = "change_feed"
    """Supports reading the changes of a collection or a physical partition, starting now or from a token."""
    CHANGE_FEED_BEGINNING = "change_feed_beginning"
    """Supports reading a feed from `Beginning()`."""
    CHANGE_FEED_POINT_IN_TIME = "change_feed_point_in_time"
    """Supports reading a feed from `AtTime(…)`."""
    CHANGE_FEED_LOGICAL_PARTITION_SCOPE = "change_feed_logical_partition_scope"
    """Supports the scope `LogicalPartition(…)`."""
    CHANGE_FEED_SNAPSHOT = "change_feed_snapshot"
    """Supports reading from `Snapshot()`, and `on_expired=Resnapshot()`."""
    LOOKUP = "lookup"
    """Supports `lookup`, which reads single rows by their keys."""
    CHANGE_FEED_ROWS = "change_feed_rows"
    """Supports reading the rows alone, from `Snapshot(changes=False)`."""
    CHANGE_FEED_ALL_VERSIONS = "change_feed_all_versions"
    """Returns every change. Without it, a read returns only the newest of the changes to a document since the
    last read."""
    CHANGE_FEED_DELETES = "change_feed_deletes"
    """Returns a `DELETE` for every deleted document."""
    CHANGE_FEED_CHANGE_TYPES = "change_feed_change_types"
    """Distinguishes `CREATE` from `UPDATE`; without it, every write of a document is an `UPDATE`."""
    CHANGE_FEED_OLD_ITEM_STATE = "change_feed_old_item_state"
    """Supports `old_item_state`, which returns the document before the change."""
    CHANGE_FEED_DATABASE_SCOPE = "change_feed_database_scope"
    """Supports the scope `EntireDatabase()`."""
    CHANGE_FEED_CLUSTER_SCOPE = "change_feed_cluster_scope"
    """Supports the scope `EntireCluster()`."""
    RUN_COMMAND = "run_command"
    """Supports `run_command` and `run_cursor_command`."""


class Support(StrEnum):
    """The level of support for a capability."""

    NATIVE = "native"
    """The service itself supports the capability."""
    EMULATED = "emulated"
    """This library emulates the capability, if the caller sets the option that the note names; otherwise a
    request that needs it is refused.
    """
    UNSUPPORTED = "unsupported"
    """A request that needs the capability raises `UNSUPPORTED_CAPABILITY`. The note says what to do instead.
    """


@frozen
class CapabilityNote:
    """States the level of support for a capability, its limits and its setup steps."""

    support: Support = attrs.field(validator=is_a(Support))
    """Whether the capability is native, emulated or unsupported."""
    note: str = attrs.field(default="", validator=is_a(str))
    """One line that states the precision, the setup step, the option to set or the alternative."""


class ScanFloor(StrEnum):
    """Where the `order_key` of a scanned row lies among the changes of the same key."""

    HIGH = "high"
    """All rows of a scan have one `order_key`. It is above every change that was made before the scan, and
    below every change that is made after its start."""
    LOW = "low"
    """All rows of a scan have one `order_key`. It is below every change."""
    ROW = "row"
    """Each row has the `order_key` of its last change."""


@frozen
class ScanFacts:
    """What a scan of a collection (`Snapshot()`) promises, and what it costs."""

    floor: ScanFloor = attrs.field(validator=is_a(ScanFloor))
    """Where the `order_key` of a scanned row lies."""
    settle_seconds: float = attrs.field(validator=is_a(int, float))
    """A change that a scan or a lookup shows is in the stream at most this many seconds later. 0 if
    `read_until` proves it: once `read_until` has passed the moment of the read, the stream has delivered the
    change."""
    price: str = attrs.field(validator=is_a(str))
    """One line that states what the service charges for reading rows, in the service's own unit."""
    units_per_row: float | None = attrs.field(default=None, validator=is_a(int, float, type(None)))
    """The charge for each row that is scanned, in the unit of `native_charge`; None if it is not known."""
    units_per_kib: float | None = attrs.field(default=None, validator=is_a(int, float, type(None)))
    """The charge for each KiB that is scanned, in the unit of `native_charge`; None if it is not known."""
    ceiling: str = attrs.field(default=":", validator=is_a(str))
    """Sorts after the `order_key` of every change that the service can ever deliver, as far as its form says
    that."""


def _copied(notes: Mapping[Capability, CapabilityNote]) -> dict[Capability, CapabilityNote]:
    check_type("CapabilitySet.notes", notes, Mapping)
    for capability, note in notes.items():
        check_type("CapabilitySet.notes", capability, Capability)
        check_type("CapabilitySet.notes", note, CapabilityNote)
    return dict(notes)


@frozen
class CapabilitySet:
    """The capabilities of one provider, provided that its resources are set up as documented."""

    notes: Mapping[Capability, CapabilityNote] = attrs.field(converter=_copied, hash=False)
    """Maps each capability to its level of support. A missing capability counts as `UNSUPPORTED`."""
    scan: ScanFacts | None = attrs.field(default=None, validator=is_a(ScanFacts, type(None)))
    """What a scan promises and costs; None if the database cannot scan."""

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
        """Return whether the capability works, either natively or with the option that its note names.

        Args:
            capability: The capability.
        """
        return self[capability].support is not Support.UNSUPPORTED
