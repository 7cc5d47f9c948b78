"""Decides which events are printed, and when no more events can match."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import attrs

from multiclouddb_api import ChangeEvent, ChangeFeedPage, ChangeType, MulticloudDbKey

__all__ = ["Selection"]


@attrs.frozen
class Selection:
    """Selects the events to print; by default, all events.

    Attributes:
        types: The kinds of changes to print; empty means all.
        since: Events before this time are omitted; None for no limit.
        until: The time after which events are omitted and the command ends; None for no limit.
        key: The partition key, or None for every key.
    """

    types: frozenset[ChangeType] = frozenset()
    since: datetime | None = None
    until: datetime | None = None
    key: MulticloudDbKey | None = None

    def of(self, events: Iterable[ChangeEvent]) -> list[ChangeEvent]:
        """Return those of the given events that must be printed."""
        return [event for event in events if self._holds(event)]

    def is_of_the_past(self) -> bool:
        """Return True if all changes up to `until` have already been written."""
        return self.until is not None and self.until < datetime.now(UTC)

    def leaves_for_later(self, page: ChangeFeedPage) -> bool:
        """Return True if this page contains an event that is later than `until`.

        A later run without `until` must print this event.
        """
        until = self.until
        return until is not None and any(event.timestamp > until for event in page.events)

    def is_over(self, page: ChangeFeedPage, asked_at: datetime) -> bool:
        """Return True if no later page can contain an event up to `until`.

        Args:
            page: The last page.
            asked_at: The time at which the page was requested.
        """
        if self.until is None:
            return False
        watermark = page.diagnostics.watermark
        if watermark is not None and watermark > self.until:
            return True
        # After an idle page, everything up to the time of its request was read.
        return page.idle and asked_at.astimezone(UTC) > self.until

    def _holds(self, event: ChangeEvent) -> bool:
        if self.types and event.type not in self.types:
            return False
        # Some services report only whole seconds, so an event with this second may be later than `since`.
        if self.since is not None and event.timestamp < self.since.replace(microsecond=0):
            return False
        if self.until is not None and event.timestamp > self.until:
            return False
        return self.key is None or event.key.partition_key == self.key.components
