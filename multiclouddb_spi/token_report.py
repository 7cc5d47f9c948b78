"""Shows what a token contains, partition by partition, and whether the service can still resume it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import attrs
from attrs import frozen

from multiclouddb_api import (
    ChangeFeedPage,
    ChangeFeedRequest,
    EntireCluster,
    EntireCollection,
    EntireDatabase,
    ErrorCategory,
    ErrorReason,
    FeedScope,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    PhysicalPartition,
    ProviderOptions,
    TokenPartition,
    TokenReport,
    invalid_request,
)
from multiclouddb_spi.continuation.entry import AnyEntry, Plan, Stage
from multiclouddb_spi.continuation.lineage import INSPECTED, Lineage, Rules
from multiclouddb_spi.continuation.state import FeedOver, Retired, state_from_json
from multiclouddb_spi.continuation.token import Envelope, decode_token, encode_token, scope_text, to_moment
from multiclouddb_spi.contract import Feed
from multiclouddb_spi.cursor import Cursor, InvalidCursor
from multiclouddb_spi.partition import encode_partition_id
from multiclouddb_spi.positions import describe
from multiclouddb_spi.segment import plan_id_of


@frozen
class Standing:
    """One partition in a token.

    Attributes:
        partition_id: The service's own id of the partition.
        state: `active`, `drained` (no child is known yet), `watched` (some children are known, and the engine
            is searching for more), `waiting` (for its parents), `next` (a child of a retired partition), or
            `scan` (the part of a snapshot that is not divided into segments yet).
        cursors: The position of the partition; several positions if its parents gave different positions.
        parents: The parents for which the partition waits.
        entry: The partition's entry in the lineage, or None for a child of a retired partition.
    """

    partition_id: str
    state: str
    cursors: tuple[Cursor, ...]
    parents: tuple[str, ...] = ()
    entry: AnyEntry | None = None

    def describe(self, feed: Feed) -> tuple[str, datetime | None]:
        """Return the position as readable text, and the time of the position."""
        try:
            positions = [describe(feed, self.partition_id, cursor) for cursor in self.cursors]
        except InvalidCursor:
            return "unreadable", None
        times = [position.time for position in positions if position.time is not None]
        return ", ".join(position.text for position in positions), min(times, default=None)


def read_standings(envelope: Envelope) -> list[Standing]:
    """Return the partitions in the order in which they are read; an empty result if the feed has ended."""
    match _state(envelope):
        case FeedOver():
            return []
        case Retired(_, children):
            return [
                Standing(child.partition_id, "next", (child.cursor,), child.parents) for child in children
            ]
        case Lineage() as lineage:
            return [_standing(entry) for entry in lineage]


def is_in_snapshot(token: str) -> bool:
    """Return whether rows of a snapshot follow a position.

    Args:
        token: The continuation token.
    """
    return any(
        isinstance(each.entry, Plan) or plan_id_of(each.partition_id) is not None
        for each in read_standings(decode_token(token))
    )


def lineage_of(envelope: Envelope, rules: Rules = INSPECTED) -> Lineage | None:
    """Return the partitions of a feed that continues; None for a feed that has ended.

    Args:
        envelope: The content of the token.
        rules: The feed, to change the lineage; by default, it is only looked at.
    """
    state = _state(envelope, rules)
    return state if isinstance(state, Lineage) else None


def ending(envelope: Envelope) -> str | None:
    """Return how the token's feed or partition ended, as text; None if it has not ended."""
    match _state(envelope):
        case FeedOver(reason):
            return f"the feed is over: {reason}"
        case Retired(partition_id):
            return f"partition {partition_id} has ended; its children follow"
        case _:
            return None


def one_partition(envelope: Envelope, standing: Standing) -> str:
    """Return a token for only one active partition."""
    assert standing.entry is not None
    alone = Lineage([standing.entry], INSPECTED)
    return encode_token(
        attrs.evolve(
            envelope, scope=scope_text(PhysicalPartition("any"), standing.partition_id), state=alone.to_json()
        )
    )


def _state(envelope: Envelope, rules: Rules = INSPECTED) -> Lineage | Retired | FeedOver:
    try:
        return state_from_json(envelope.state, rules)
    except InvalidCursor as error:
        raise _damaged(error) from error


def _standing(entry: AnyEntry) -> Standing:
    if isinstance(entry, Plan):
        return Standing(entry.partition_id, "scan", (), entry=entry)
    if entry.stage is Stage.WAIT:
        return Standing(entry.partition_id, "waiting", entry.said, entry.waits, entry)
    state = "active"
    if entry.stage is Stage.END:
        state = "watched" if entry.children else "drained"
    return Standing(entry.partition_id, state, entry.said, entry=entry)


def _damaged(error: InvalidCursor) -> MulticloudDbError:
    return invalid_request(
        "continuation_token",
        f"is damaged ({error})",
        "pass a page's continuation_token unchanged",
        ErrorReason.MALFORMED,
    )


def watermark_of(envelope: Envelope) -> datetime | None:
    """Return the watermark: no event after the token is older than this time."""
    return None if envelope.watermark is None else to_moment(envelope.watermark)


def issued_at(envelope: Envelope) -> datetime | None:
    """Return the time at which the token was made, or None if it is no time."""
    try:
        return datetime.fromtimestamp(envelope.issued_at, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def check_provider(provider_id: str, envelope: Envelope) -> None:
    """Refuse the token of another provider."""
    if envelope.provider_id != provider_id:
        raise invalid_request(
            "continuation_token",
            f"belongs to provider {envelope.provider_id!r}, not to {provider_id!r}",
            "give the URL of the database that it came from",
            ErrorReason.WRONG_PROVIDER,
        )


def scope_of(envelope: Envelope, key: MulticloudDbKey | None) -> FeedScope | None:
    """Return the scope for which the token was made; None if that needs a partition key that is not given."""
    kind, _, value = envelope.scope.partition(":")
    match kind:
        case "database":
            return EntireDatabase()
        case "cluster":
            return EntireCluster()
        case "partition" | "descendants":
            public_id = encode_partition_id(
                envelope.provider_id, envelope.address, envelope.incarnation, value
            )
            return PhysicalPartition(public_id, with_descendants=kind == "descendants")
        case "key":
            if key is None:
                return None
            scope = LogicalPartition(key)
            if scope_text(scope) != envelope.scope:
                raise invalid_request(
                    "key", "is not the partition key of the token", "pass that key", ErrorReason.WRONG_SCOPE
                )
            return scope
        case _:
            return EntireCollection()


_GONE: Final = (ErrorCategory.CHECKPOINT_EXPIRED, ErrorCategory.NOT_FOUND)
_OF_THE_TOKEN: Final = (
    ErrorReason.MALFORMED,
    ErrorReason.UNKNOWN_VERSION,
    ErrorReason.WRONG_PROVIDER,
    ErrorReason.WRONG_RESOURCE,
    ErrorReason.WRONG_SCOPE,
    ErrorReason.WRONG_OPTIONS,
    ErrorReason.RECREATED,
    ErrorReason.REPLACED,
)


def resumes_after(error: MulticloudDbError | None) -> bool | None:
    """Return whether a token can be resumed, by what a read from it has raised.

    Args:
        error: The error; None if there was none.

    Returns:
        None if the error tells nothing of the token, as when the service did not answer.
    """
    if error is None:
        return True
    return False if error.category in _GONE or error.reason in _OF_THE_TOKEN else None


def before(page: ChangeFeedPage) -> tuple[datetime | None, float | None]:
    """Return the watermark and the lag before a page, which itself has those after its events."""
    told = page.diagnostics
    watermark, lag, until = told.watermark, told.lag_seconds, told.read_until
    if page.events:
        oldest = min(event.timestamp for event in page.events)
        watermark = watermark and min(watermark, oldest)
        if lag is not None and until is not None:
            lag += max(0.0, (until - oldest).total_seconds())
    return watermark, lag


def report(
    envelope: Envelope,
    token: str,
    key: MulticloudDbKey | None,
    options: ProviderOptions | None,
    read: Callable[[ChangeFeedRequest], ChangeFeedPage],
    described_by: Callable[[ChangeFeedRequest, list[Standing]], list[tuple[str, datetime | None]]],
) -> TokenReport:
    """Make the report: `read` reads one page, and `described_by` returns the positions as text."""
    standings, scope = read_standings(envelope), scope_of(envelope, key)
    page: ChangeFeedPage | None = None
    failure: MulticloudDbError | None = None
    described: list[tuple[str, datetime | None]] = [("", None)] * len(standings)
    if scope is not None:
        request = ChangeFeedRequest(
            envelope.address,
            FromContinuationToken(token),
            scope,
            new_item_state_mode=NewItemStateMode.OMIT,
            max_page_size=1,
            provider_options=options,
        )
        try:
            page = read(request)
            described = described_by(request, standings)
        except MulticloudDbError as error:
            if error.retryable:
                raise
            failure = error

    watermark, lag, waiting = watermark_of(envelope), None, None
    if page is not None:
        watermark, lag = before(page)
        waiting = bool(page.events) or (False if page.idle else None)

    def public(name: str) -> str:
        return encode_partition_id(envelope.provider_id, envelope.address, envelope.incarnation, name)

    return TokenReport(
        address=envelope.address,
        scope=envelope.scope,
        issued_at=issued_at(envelope),
        watermark=watermark,
        partitions=tuple(
            TokenPartition(
                public(each.partition_id), each.state, text, time, tuple(map(public, each.parents))
            )
            for each, (text, time) in zip(standings, described, strict=True)
        ),
        ended=ending(envelope),
        resumes=None if scope is None else resumes_after(failure),
        error=None if failure is None else failure.category,
        problem="" if failure is None else failure.message,
        changes_waiting=waiting,
        lag_seconds=lag,
        retention_headroom_seconds=None if page is None else page.diagnostics.retention_headroom_seconds,
    )
