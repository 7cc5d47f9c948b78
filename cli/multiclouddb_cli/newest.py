"""`--last N` prints the newest events, if the service can start at a given time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeEvent,
    ChangeFeedRequest,
    ErrorCategory,
    ErrorDetail,
    MulticloudDbError,
    OperationOptions,
    Support,
)
from multiclouddb_api.position import FromContinuationToken
from multiclouddb_cli.contact import Contact
from multiclouddb_cli.selection import Selection

__all__ = ["newest"]

_WINDOWS: Final = (60, 600, 3600, 6 * 3600, 86400, 7 * 86400)


def newest(
    contact: Contact, request: ChangeFeedRequest, selection: Selection, count: int, options: OperationOptions
) -> tuple[list[ChangeEvent], str]:
    """Return the newest events in the order of their times, and the token after them.

    The function reads the last minute, and then longer and longer periods until it has found enough events.

    Args:
        contact: The object that reads pages.
        request: The request; its start position is not used.
        selection: Selects the events that are returned.
        count: The largest number of events to return.
        options: The time limits of one call.

    Raises:
        MulticloudDbError: `UNSUPPORTED_CAPABILITY` if the service cannot start at a given time.
    """
    capabilities = contact.client.capabilities()
    if capabilities[Capability.CHANGE_FEED_POINT_IN_TIME].support is not Support.NATIVE:
        raise MulticloudDbError(
            f"--last is not possible on {contact.client.config.provider}, which cannot start at a given "
            f"time; run tail --from beginning --until-idle and keep the last lines (tail -n)",
            ErrorDetail(ErrorCategory.UNSUPPORTED_CAPABILITY, contact.client.config.provider, "tail"),
        )
    now = datetime.now(UTC)
    for seconds in _WINDOWS:
        start = attrs.evolve(request, start_position=AtTime(now - timedelta(seconds=seconds)))
        try:
            found, token = _read(contact, start, selection, count, options, now)
        except MulticloudDbError as error:
            if error.category != ErrorCategory.CHECKPOINT_EXPIRED:
                raise
            break
        if len(found) >= count:
            return found, token
    return _read(contact, attrs.evolve(request, start_position=Beginning()), selection, count, options, now)


def _read(
    contact: Contact,
    request: ChangeFeedRequest,
    selection: Selection,
    count: int,
    options: OperationOptions,
    until: datetime,
) -> tuple[list[ChangeEvent], str]:
    """Return the newest events between the request's start and `until`, and the token after them."""
    found: list[ChangeEvent] = []
    while True:
        page = contact.read_changes(request, options)
        found += selection.of(page.events)
        if len(found) > 2 * count:
            found = _newest_of(found, count)
        token, watermark = page.continuation_token, page.diagnostics.watermark
        if page.idle or page.partition_retired or (watermark is not None and watermark > until):
            return _newest_of(found, count), token
        request = attrs.evolve(request, start_position=FromContinuationToken(token))


def _newest_of(events: list[ChangeEvent], count: int) -> list[ChangeEvent]:
    """Return the newest events by time; events with the same time keep their order."""
    return sorted(events, key=lambda event: event.timestamp)[-count:]
