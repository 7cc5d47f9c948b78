"""Defines the result of `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import attrs

from multiclouddb_api.codec import plain_value
from multiclouddb_api.redaction import rfc3339, shorten
from multiclouddb_verify.comparison import DifferenceKind

__all__ = ["Cost", "Counts", "Difference", "Outcome", "Progress", "Report"]


class Outcome(StrEnum):
    """The verdict on what was compared: the first of `DIFFERENT`, `UNSETTLED` and `BEHIND` that holds."""

    EQUAL = "equal"
    """Every key is equal, and the table is not marked as incomplete. Exit code 0."""
    DIFFERENT = "different"
    """Differences are left. Exit code 11."""
    UNSETTLED = "unsettled"
    """No difference is left, but some keys are neither equal nor different. Exit code 12."""
    BEHIND = "behind"
    """Nothing differs, but the sink did not reach the last changes of some keys in time, or the table is
    still marked as incomplete. Exit code 13."""


_CODES: Final = {Outcome.EQUAL: 0, Outcome.DIFFERENT: 11, Outcome.UNSETTLED: 12, Outcome.BEHIND: 13}


@attrs.frozen
class Difference:
    """One key whose row in the table does not equal the source."""

    kind: DifferenceKind
    """What is wrong."""
    key: str = attrs.field(repr=shorten)
    """The key, as JSON text, as in the table."""
    order_key: str | None
    """The `order_key` of the row in the table, or None if there is no row."""
    path: str | None = None
    """The first path at which the documents differ, for example `$.items[2].price`; only for the first 100
    differences."""
    source_type: str | None = None
    """The type of the source's value at the path."""
    target_type: str | None = None
    """The type of the table's value at the path."""
    source_value: Any = attrs.field(default=None, repr=False)
    """The source's value at the path, only with `show_values`."""
    target_value: Any = attrs.field(default=None, repr=False)
    """The table's value at the path, only with `show_values`."""
    note: str | None = None
    """For a repaired row, which answers agreed on the value; for one that could not be repaired, why."""


@attrs.frozen
class Counts:
    """What was compared."""

    equal: int
    """The number of documents that are equal."""
    unsettled: int
    """The number of keys without a verdict, because they changed all the time, or because it is not known
    what the source has."""
    repaired: int
    """The number of keys that were different and were made equal."""
    differences: Mapping[DifferenceKind, int]
    """The number of differences that are left, by kind; kinds without any are left out."""
    behind: int = 0
    """The number of keys whose last change the sink's position did not reach, although `verify` has
    waited."""
    expected_ghosts: int = 0
    """How many differences are ghosts that had to be expected, because the feed has no deletes."""
    expected_missing: int = 0
    """How many differences are missing rows that had to be expected, because the sink leaves out such keys
    (`long_keys="skip"` of PostgreSQL)."""


@attrs.frozen
class Cost:
    """What the comparison has read."""

    rows: int
    """The number of rows that the scan of the source has read."""
    looked_up: int
    """The number of rows of the source that were read again, by key."""
    changes: int
    """The number of changes that were read from the stream."""
    target_rows: int
    """The number of rows of the table that were compared, over all rounds."""
    rounds: int
    """The number of times that keys were judged."""
    native_charge: float | None
    """What the service charged for the scan and the stream, in its own unit, or None."""
    state_bytes: int
    """The largest size of the state folder."""
    seconds: float
    """The duration of this call, without an interrupted one that it has resumed."""


@attrs.frozen
class Progress:
    """How far a comparison is."""

    phase: str
    """`scan`, `table`, `compare`, `rounds` or `repair`."""
    rows: int = 0
    """The number of rows of the source that were read so far."""
    records: int | None = None
    """The approximate number of rows of the source, if it is known."""
    segments_done: int = 0
    """The number of segments of the scan that were read."""
    segments: int | None = None
    """The number of segments of the scan."""
    target_rows: int = 0
    """The number of rows of the table that were read."""
    left: int = 0
    """The number of keys that are not settled yet."""


@attrs.frozen
class Report:
    """The result of `verify`."""

    equal: bool
    """True if every key is equal: none is different, unsettled or behind."""
    verified_through: str | None = attrs.field(repr=shorten)
    """The sink's position at the start, as a token: the table has every key in the source's state at this
    position or at a later one. None if the table is not equal."""
    verified_at: datetime | None
    """The time up to which the sink had read at that position, if the token has it."""
    counts: Counts
    """What was compared."""
    differences: tuple[Difference, ...]
    """The differences that are left, at most 10,000; `counts` counts all."""
    repaired: tuple[Difference, ...]
    """The differences that were repaired, at most 10,000."""
    unsettled: tuple[str, ...]
    """The keys without a verdict, at most 10,000."""
    behind: tuple[str, ...]
    """Keys whose last change the sink did not reach, at most 10,000."""
    reasons: Mapping[str, str] = attrs.field(repr=False)
    """Maps keys of `unsettled` to why they have no verdict or were not repaired. A key that merely changes
    too often is not among them."""
    cost: Cost
    """What was read."""
    settle_seconds: float
    """How long a change may take to appear in the stream, in seconds; each difference was found again after
    this time."""
    refused: str | None = None
    """Why nothing was repaired although `repair` was given, or None."""
    expected: str | None = None
    """Why some of the differences that are left had to be expected, or None."""
    covered: str | None = None
    """With `sample`, `keys` or `partition_key`, what was compared; None if it was the whole table."""
    incomplete_since: str | None = None
    """Since when the table is marked as incomplete, because its sink has skipped a gap; None if it is not. An
    equal comparison of all keys with `repair` or `record` removes the mark."""
    not_compared: tuple[str, ...] = ()
    """The columns of the table that were not compared, because they are neither declared nor made by
    `transform`: nobody knows what they have to contain."""
    unfilled: tuple[str, ...] = ()
    """The declared columns that a refill has not filled yet."""
    left_over: str | None = None
    """What became of an earlier comparison that was interrupted, or None if there was none."""

    @property
    def outcome(self) -> Outcome:
        """The verdict on what was compared."""
        if self.counts.differences:
            return Outcome.DIFFERENT
        if self.counts.unsettled:
            return Outcome.UNSETTLED
        if self.counts.behind or self.incomplete_since is not None:
            return Outcome.BEHIND
        return Outcome.EQUAL

    @property
    def exit_code(self) -> int:
        """The exit code of `multiclouddb verify` for this outcome; a job may exit with it too."""
        return _CODES[self.outcome]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary of JSON's own types."""
        told = attrs.asdict(self, recurse=False)
        told["verified_at"] = None if self.verified_at is None else rfc3339(self.verified_at)
        told["counts"] = attrs.asdict(self.counts) | {
            "differences": {kind.value: count for kind, count in self.counts.differences.items()}
        }
        told["cost"] = attrs.asdict(self.cost)
        for name in ("differences", "repaired"):
            told[name] = [plain_value(attrs.asdict(each)) for each in told[name]]
        told["reasons"] = dict(self.reasons)
        for name in ("unsettled", "behind", "not_compared", "unfilled"):
            told[name] = list(told[name])
        return told | {"outcome": self.outcome.value, "exit_code": self.exit_code}
