"""What a mirror tells of a run: how far it is, and at the end what it has done."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import attrs

from multiclouddb_api import ResourceAddress, SnapshotProgress

if TYPE_CHECKING:
    from multiclouddb_verify import Report

__all__ = ["MirrorProgress", "MirrorReport"]


@attrs.frozen
class MirrorProgress:
    """How far a mirror is."""

    events: int
    """The number of rows and changes that were merged."""
    deletes: int
    """How many of them were deletes."""
    snapshot: SnapshotProgress | None
    """How far the copy of all rows is; None if none is under way."""
    lag_seconds: float | None
    """How far the table is behind; None if that is not known."""

    @property
    def rows(self) -> int:
        """What a rate is computed of: the same as `events`."""
        return self.events


@attrs.frozen
class MirrorReport:
    """What a mirror has done."""

    address: ResourceAddress
    """The collection."""
    table: str
    """The name of the table, without secrets."""
    began: Literal["snapshot", "position", "start", "expired"]
    """Whether it began with a copy of all rows, at the stored position, or at the setting `start`; or with a
    copy of all rows because the service no longer had the changes after the stored position."""
    events: int
    """The number of rows and changes that were merged. A page that was interrupted counts again, or, if its
    commit had no answer, not at all."""
    deletes: int
    """How many of them were deletes."""
    pages: int
    """The number of pages with changes; each is one merge."""
    seconds: float
    """How long it took, without the proof."""
    caught_up: bool
    """True if every change was read; False if it was stopped before."""
    watermark: datetime | None
    """The time up to which every change is in the table; None if that is not known, as before the copy of all
    rows has ended."""
    lag_seconds: float | None
    """How far the table was behind at the last page; None if that is not known."""
    set_aside: int = 0
    """The number of rows of which a change is set aside, those of earlier runs too; a record that cannot be
    decoded, and so has no key, counts as one."""
    incomplete_since: str | None = None
    """Since when (RFC 3339) the table lacks changes, of which a run without `set_aside` cannot say how many;
    None if it lacks none, or if `set_aside` counts them. A proof that finds the table equal ends it."""
    rescued: int | None = None
    """How many of the merged rows have a value in `_rescued`, because it does not fit its column; a row that
    was merged again counts again. None if the declaration does not have `misfits = "rescue"`."""
    tombstones: int | None = None
    """The number of rows of deleted documents that were removed; None without `tombstones`."""
    proof: Report | None = None
    """What the comparison has found; None without `prove`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        found = attrs.asdict(self, recurse=False, filter=attrs.filters.exclude("proof"))
        found["address"] = str(self.address)
        found["watermark"] = None if self.watermark is None else self.watermark.isoformat()
        found["proof"] = None if self.proof is None else self.proof.to_dict()
        return found
