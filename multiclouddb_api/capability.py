"""What a database can do, natively or emulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

import attrs

__all__ = ["Capability", "CapabilityNote", "CapabilitySet", "Support"]


class Capability(Enum):
    """A feature that not every database supports. The first-class capabilities come first."""

    CHANGE_FEED = "change_feed"
    """Changes of a collection or a physical partition, from now or from a token."""
    CHANGE_FEED_BEGINNING = "change_feed_beginning"
    """A start at `Beginning()`."""
    CHANGE_FEED_POINT_IN_TIME = "change_feed_point_in_time"
    """A start at `AtTime(…)`."""
    CHANGE_FEED_LOGICAL_PARTITION_SCOPE = "change_feed_logical_partition_scope"
    """The scope `LogicalPartition(…)`."""
    CHANGE_FEED_SNAPSHOT = "change_feed_snapshot"
    """A start at `Snapshot()`, and `on_expired=Resnapshot()`."""
    CHANGE_FEED_OLD_ITEM_STATE = "change_feed_old_item_state"
    """`old_item_state`: the document before the change."""
    CHANGE_FEED_DATABASE_SCOPE = "change_feed_database_scope"
    """The scope `EntireDatabase()`."""
    CHANGE_FEED_CLUSTER_SCOPE = "change_feed_cluster_scope"
    """The scope `EntireCluster()`."""
    RUN_COMMAND = "run_command"
    """`run_command` and `run_cursor_command`."""


class Support(Enum):
    """How far a capability is supported."""

    NATIVE = "native"
    """The service supports it natively."""
    EMULATED = "emulated"
    """This library emulates it. It is refused without the opt-in that the note names."""
    UNSUPPORTED = "unsupported"
    """Refused with `UNSUPPORTED_CAPABILITY`; the note says what to do instead."""


@attrs.frozen
class CapabilityNote:
    """How far one capability is supported, with its limits or the steps that it needs.

    Attributes:
        support: Native, emulated or not.
        note: Precision, provisioning step, opt-in, or the alternative; one line.
    """

    support: Support
    note: str = ""


def _copied(notes: Mapping[Capability, CapabilityNote]) -> dict[Capability, CapabilityNote]:
    return dict(notes)


@attrs.frozen
class CapabilitySet:
    """The capabilities of one provider, when its resources are provisioned as documented.

    Attributes:
        notes: Capability → how far it is supported. A missing capability is `UNSUPPORTED`.
    """

    notes: Mapping[Capability, CapabilityNote] = attrs.field(converter=_copied, hash=False)

    def __getitem__(self, capability: Capability) -> CapabilityNote:
        return self.notes.get(capability, CapabilityNote(Support.UNSUPPORTED))

    def __iter__(self) -> Iterator[Capability]:
        return iter(Capability)

    def is_supported(self, capability: Capability) -> bool:
        """Whether it works, natively or with the opt-in that its note names.

        Args:
            capability: The capability.
        """
        return self[capability].support is not Support.UNSUPPORTED
