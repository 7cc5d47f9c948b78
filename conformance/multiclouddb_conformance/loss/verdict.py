"""Records the facts of one run, and checks them against the promises of the feed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from multiclouddb_api import ChangeEvent, ChangeFeedPage
from multiclouddb_conformance.loss.life import Change
from multiclouddb_conformance.loss.report import RunReport
from multiclouddb_conformance.loss.truth import Marker, match
from multiclouddb_conformance.model import (
    check_complete,
    check_identity,
    check_key_order,
    check_known,
    check_lineage,
    check_order,
    check_order_keys,
    check_watermarks,
    count_duplicates,
)

__all__ = ["Idle", "Reading", "Record"]


@attrs.frozen
class Idle:
    """The state of the run at the time when a page reported that the feed was idle.

    Attributes:
        written: The number of written changes.
        delivered: The number of processed events.
        required_from: The first change that the consumer must see.
    """

    written: int
    delivered: int
    required_from: int


@attrs.frozen
class Reading:
    """The pages that one consumer received.

    Attributes:
        seen_before: The number of events that earlier consumers had processed.
        pages: The pages of this consumer.
    """

    seen_before: int
    pages: list[ChangeFeedPage] = attrs.field(factory=list)


@attrs.define
class Record:
    """The recorded facts of one run.

    Attributes:
        truth: The changes that were written.
        labels: A name for each written change.
        delivered: The events that the application processed.
        idle: The idle pages that the consumers received.
        readings: The pages of each consumer.
        required_from: The first change that must be delivered; None until the first read.
        allowed_from: The first change that may be delivered.
        kills: The number of times that a consumer was killed.
        error: The reason why the run ended early, or None.
    """

    truth: list[Change] = attrs.field(factory=list)
    labels: list[str] = attrs.field(factory=list)
    delivered: list[ChangeEvent] = attrs.field(factory=list)
    idle: list[Idle] = attrs.field(factory=list)
    readings: list[Reading] = attrs.field(factory=list)
    required_from: int | None = None
    allowed_from: int | None = None
    kills: int = 0
    error: str | None = None

    def report(
        self,
        plan: str,
        name: str,
        marker: Marker,
        lineage: Mapping[str, tuple[str, ...]] | None,
        *,
        key_order: bool = True,
    ) -> RunReport:
        """Return all findings about the delivered events."""
        numbers = match(self.truth, self.delivered, marker)

        def identify(event: ChangeEvent) -> str:
            number = numbers.get(event.event_id)
            return f"event {event.event_id}" if number is None else self.labels[number]

        delivered, labels = self.delivered, self.labels
        required = labels[self.required_from or 0 :] if self.required_from is not None else []
        early = {labels[number] for number in numbers.values() if number < (self.allowed_from or 0)}
        return RunReport(
            plan=plan,
            name=name,
            written=len(self.truth),
            delivered=len(delivered),
            duplicates=count_duplicates(delivered, identify),
            kills=self.kills,
            lost=tuple(check_complete(required, delivered, identify)) if self.error is None else (),
            early=tuple(sorted(early)),
            unknown=tuple(check_known(labels, delivered, identify)),
            disorder=(
                *check_order(labels, delivered, identify),
                *(check_key_order if key_order else check_order_keys)(labels, delivered, identify),
            ),
            lineage=() if lineage is None else tuple(check_lineage(delivered, lineage, identify)),
            identity=tuple(check_identity(delivered, identify)),
            watermark=tuple(self._watermarks(identify)),
            hasty=tuple(self._hasty([numbers.get(event.event_id) for event in delivered])),
            error=self.error,
        )

    def _watermarks(self, identify: Callable[[ChangeEvent], str]) -> list[str]:
        found = []
        for reading in self.readings:
            seen = {identify(event) for event in self.delivered[: reading.seen_before]}
            found += check_watermarks(reading.pages, identify, seen)
        return found

    def _hasty(self, numbers: list[int | None]) -> list[str]:
        found = []
        for idle in dict.fromkeys(self.idle):
            came = set(numbers[: idle.delivered])
            missing = [number for number in range(idle.required_from, idle.written) if number not in came]
            if missing:
                found.append(
                    f"idle before {len(missing)} changes were delivered, first {self.labels[missing[0]]}"
                )
        return found
