"""What one reader of a feed costs, with its form as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

__all__ = ["HOUR", "MILLION", "Cost", "Counted"]

HOUR: Final = 3600
MILLION: Final = 1_000_000


@attrs.frozen
class Counted:
    """The requests that a server has received from a reader.

    Attributes:
        changes: The number of changes that were waiting when the reader began.
        reads: The requests that read them, with those that found the end.
        units: The units of the bill for these requests; None if a request has no price.
        seconds: How long the reader then followed the feed without a change.
        idle_reads: The requests that read the idle feed in this time.
        idle_others: All other requests in this time, which are free.
        idle_units: The units of the bill for the idle requests; None if a request has no price.
    """

    changes: int
    reads: int
    units: float | None
    seconds: float
    idle_reads: int
    idle_others: int
    idle_units: float | None


@attrs.frozen
class Cost:
    """A row of the table: the cost of one reader of one partition.

    Attributes:
        service: The service.
        reader: The reader, with the setting that decides the delay.
        ours: True if the reader is this project's.
        million_requests: The requests that read 1,000,000 waiting changes; None if nobody knows.
        million_units: The units for them; None if nobody knows, or if a request has no price.
        hour_requests: The requests that read an idle feed for an hour.
        hour_others: The other requests of this hour, which have no price; None if nobody has counted them.
        hour_units: The units of this hour; None if a request has no price.
        delay_seconds: The mean time between two requests; 0 if the request itself waits at the server.
        known: Where the figures come from: `counted`, or the published defaults from which they are computed.
        also: What the reader needs in addition, such as a table of leases; empty if there is nothing.
    """

    service: str
    reader: str
    ours: bool
    million_requests: float | None
    million_units: float | None
    hour_requests: float
    hour_others: float | None
    hour_units: float | None
    delay_seconds: float
    known: str = "counted"
    also: str = ""

    @classmethod
    def of(
        cls,
        service: str,
        reader: str,
        counted: Counted,
        *,
        ours: bool = False,
        waits: bool = False,
        also: str = "",
    ) -> Cost:
        """Scale what was counted to a million changes and an hour.

        Args:
            service: The service.
            reader: The reader.
            counted: What the server has received.
            ours: True if the reader is this project's.
            waits: True if the request itself waits at the server, so that a change is delivered at once.
            also: What the reader needs in addition.
        """
        many, long = MILLION / counted.changes, HOUR / counted.seconds
        return cls(
            service,
            reader,
            ours,
            counted.reads * many,
            None if counted.units is None else counted.units * many,
            counted.idle_reads * long,
            counted.idle_others * long,
            None if counted.idle_units is None else counted.idle_units * long,
            0.0 if waits else counted.seconds / max(1, counted.idle_reads),
            also=also,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cost:
        """Return the cost that was passed to `to_json`."""
        return cls(**value)
