"""Which of the read events are printed, and when there can be no more of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import attrs

from multiclouddb_api import ChangeEvent, ChangeFeedPage, ChangeType, MulticloudDbKey

__all__ = ["Selection"]


@attrs.frozen
class Selection:
    """The events that are printed; by default all.

    Attributes:
        types: The kinds of changes; empty for all.
        since: Leave out what is older, or None.
        until: Leave out what is newer, and end then; or None.
        key: The partition key, or None for every key.
    """

    types: frozenset[ChangeType] = frozenset()
    since: datetime | None = None
    until: datetime | None = None
    key: MulticloudDbKey | None = None

    def of(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """The events to print."""
        return [event for event in events if self._holds(event)]

    def is_of_the_past(self) -> bool:
        """True if everything up to `until` has been written."""
        return self.until is not None and self.until < datetime.now(UTC)

    def leaves_for_later(self, page: ChangeFeedPage) -> bool:
        """True if a later run without `until` has to print an event of this page."""
        until = self.until
        return until is not None and any(event.timestamp > until for event in page.events)

    def is_over(self, page: ChangeFeedPage, asked_at: datetime) -> bool:
        """True if no later page can have an event up to `until`.

        Args:
            page: The last page.
            asked_at: When it was asked for.
        """
        if self.until is None:
            return False
        watermark = page.diagnostics.watermark
        if watermark is not None and watermark > self.until:
            return True
        # An idle page has everything up to the moment when it was asked for.
        return page.idle and asked_at.astimezone(UTC) > self.until

    def _holds(self, event: ChangeEvent) -> bool:
        if self.types and event.type not in self.types:
            return False
        # Some services report whole seconds, so an event of this second may be later than `since`.
        if self.since is not None and event.timestamp < self.since.replace(microsecond=0):
            return False
        if self.until is not None and event.timestamp > self.until:
            return False
        return self.key is None or event.key.partition_key == self.key.components
