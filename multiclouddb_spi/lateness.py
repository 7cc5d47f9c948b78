"""Decides whether the reader of a token is late: whether a change waits for it that is older than a limit.

The age of a token decides nothing, because the token of an idle feed may be old. So changes are read from the
token until one of these is known, by the service's clock alone:

- a change after the token is older than the limit: the reader is late;
- nothing that is older can follow in any partition, because the service has sent a younger change or a
  heartbeat, or has nothing more: the reader is on time.

If neither is known in time, the answer is not known. During the scan of a snapshot the reader is never on
time, because it lacks rows of unknown age; it is late if a change after the snapshot is too old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import attrs
from attrs import frozen

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbError,
    NotKnown,
)
from multiclouddb_api.redaction import rfc3339
from multiclouddb_spi.continuation.lineage import Rules
from multiclouddb_spi.continuation.token import Envelope, encode_token
from multiclouddb_spi.token_report import lineage_of

_SECONDS: Final = 60.0
_WAIT_SECONDS: Final = 1.0


@frozen
class OnTime:
    """No change that the reader has not read is older than the limit."""


@frozen
class Late:
    """A change that the reader has not read is older than the limit.

    Attributes:
        change: The time of the change, by the service's clock.
        seconds: How long before the check that was, by the service's clock.
    """

    change: datetime
    seconds: float


Lateness: TypeAlias = OnTime | Late | NotKnown


def lateness(
    read: Callable[[ChangeFeedRequest, float], ChangeFeedPage],
    now: datetime | None,
    rules: Rules,
    request: ChangeFeedRequest,
    envelope: Envelope,
    most: timedelta,
    seconds: float = _SECONDS,
) -> Lateness:
    """Return whether the reader of a token is late.

    Args:
        read: Reads a page; it gets the number of seconds to wait for a first event.
        now: The service's time, or None if it does not report one.
        rules: The feed.
        request: The request that starts at the token.
        envelope: The content of the token.
        most: How old a change may be that the reader has not read.
        seconds: After this time, the answer is not known.

    Raises:
        MulticloudDbError: Raised if the feed cannot be read; but if only a later read fails, and may succeed
            later, the answer is not known.
    """
    bound = None if now is None else now - most
    lineage, scan = lineage_of(envelope, rules), ""
    if lineage is not None and lineage.plan is not None:
        scan = "the scan of a snapshot has not ended"
        lineage.end_scan()
        if not len(lineage):
            return NotKnown(f"{scan}, and the token reads no changes")
        token = encode_token(attrs.evolve(envelope, state=lineage.to_json()))
        request = attrs.evolve(request, start_position=FromContinuationToken(token))
    on_time = NotKnown(f"{scan}; no change after it is too old") if scan else OnTime()
    ends, wait, page, failure = time.monotonic() + seconds, 0.0, None, ""
    while page is None or time.monotonic() < ends:
        try:
            page, failure = read(request, wait), ""
        except MulticloudDbError as error:
            if page is None or not error.retryable:
                raise
            failure = error.message
            time.sleep(_WAIT_SECONDS)
            continue
        if now is not None and bound is not None:
            oldest = min((event.timestamp for event in page.events), default=bound)
            if oldest < bound:
                return Late(oldest, (now - oldest).total_seconds())
        watermark = page.diagnostics.watermark
        if page.idle or page.partition_retired:
            return on_time
        if bound is None and page.events:
            return NotKnown("changes wait, but the service does not tell its time")
        if watermark is not None and bound is not None and watermark >= bound:
            return on_time
        wait = 0.0 if page.events else _WAIT_SECONDS
        request = attrs.evolve(request, start_position=FromContinuationToken(page.continuation_token))
    return NotKnown(failure or _unsettled(page, seconds))


def _unsettled(page: ChangeFeedPage, seconds: float) -> str:
    """Return why it was not found out in time."""
    told = page.diagnostics
    if told.partition_errors:
        (name, error), *others = told.partition_errors.items()
        return f"{name} cannot be read ({error})" + (f", and {len(others)} others" if others else "")
    until = "nothing" if told.watermark is None else f"only the changes before {rfc3339(told.watermark)}"
    return f"after {seconds:.0f} s, the service had proven {until} to be read"
